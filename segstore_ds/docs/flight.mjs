// Prints the events of a scan: node flight.mjs HOST:PORT, beside a stream named clicks.
import grpc from "@grpc/grpc-js";
import protobuf from "protobufjs";
import { tableFromIPC } from "apache-arrow";

// The two messages of Arrow's Flight.proto that a scan needs.
const { root } = protobuf.parse(`syntax = "proto3";
  message Ticket { bytes ticket = 1; }
  message FlightData { bytes data_header = 2; bytes data_body = 1000; }`);
const Ticket = root.lookupType("Ticket"), FlightData = root.lookupType("FlightData");
const Flight = grpc.makeGenericClientConstructor({ DoGet: {
  path: "/arrow.flight.protocol.FlightService/DoGet", requestStream: false, responseStream: true,
  requestSerialize: (ticket) => Ticket.encode({ ticket }).finish(),
  responseDeserialize: (bytes) => FlightData.decode(bytes),
} });

// As Arrow frames messages in a stream: a mark, the header's length, the header, the body.
function framed({ dataHeader, dataBody }) {
  const padded = Buffer.alloc(Math.ceil(dataHeader.length / 8) * 8);
  padded.set(dataHeader);
  const start = Buffer.alloc(8, 0xff);
  start.writeInt32LE(padded.length, 4);
  return Buffer.concat([start, padded, Buffer.from(dataBody)]);
}

const client = new Flight(process.argv[2], grpc.credentials.createInsecure());
const ask = Buffer.from(JSON.stringify({ stream: "clicks", filters: "n > 1" }));
const messages = [];
for await (const data of client.DoGet(ask)) messages.push(framed(data));
for (const row of tableFromIPC(Buffer.concat(messages))) console.log(row.user, Number(row.n));
client.close();
