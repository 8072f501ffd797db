// Prints the events of a scan: go run flight.go HOST:PORT, beside a stream named clicks.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func main() {
	plain := grpc.WithTransportCredentials(insecure.NewCredentials())
	client := must(flight.NewClientWithMiddleware(os.Args[1], nil, nil, plain))
	ticket := &flight.Ticket{Ticket: []byte(`{"stream": "clicks", "filters": "n > 1"}`)}
	stream := must(client.DoGet(context.Background(), ticket))
	reader := must(flight.NewRecordReader(stream))
	for reader.Next() {
		users, n := reader.RecordBatch().Column(0).(*array.String), reader.RecordBatch().Column(1)
		for row := range users.Len() {
			fmt.Println(users.Value(row), n.ValueStr(row))
		}
	}
	if reader.Err() != nil {
		log.Fatal(reader.Err())
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
