// Reads histories of streams, a JSON object a line, and prints what porcupine thinks of each.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"math"
	"os"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

type operation struct {
	Call       int64    `json:"call"`
	Return     *int64   `json:"return"` // null: there was no answer
	Kind       string   `json:"kind"`
	Events     []string `json:"events"`
	Start      *int     `json:"start"` // null: not known, or nothing was read
	Head, Tail int
}

// A stream: all events since its creation, and where it begins now.
type stream struct {
	head   int
	events []string
	digest uint64
}

var seed = maphash.MakeSeed()

func (s stream) appended(events []string) stream {
	longer := stream{s.head, append(slices.Clip(s.events), events...), s.digest}
	for _, event := range events {
		longer.digest = longer.digest*31 + maphash.String(seed, event)
	}
	return longer
}

func step(state, input, _ any) []any {
	s, o := state.(stream), input.(operation)
	if o.Kind == "look" {
		// Retention moves the head at any time; it never goes back.
		if o.Head < s.head || o.Tail != len(s.events) {
			return nil
		}
		if o.Start != nil && !slices.Equal(s.events[*o.Start:*o.Start+len(o.Events)], o.Events) {
			return nil
		}
		return []any{stream{o.Head, s.events, s.digest}}
	}
	if o.Start != nil && *o.Start != len(s.events) {
		return nil
	}
	after := s.appended(o.Events)
	after.head = max(s.head, o.Head) // an overwrite moves it
	if o.Return == nil && o.Start == nil {
		return []any{s, after} // nobody knows whether it had an effect
	}
	return []any{after}
}

func main() {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{stream{}} },
		Step: step,
		Equal: func(one, other any) bool {
			a, b := one.(stream), other.(stream)
			return a.head == b.head && len(a.events) == len(b.events) && a.digest == b.digest
		},
	}
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	for decoder := json.NewDecoder(lines); decoder.More(); {
		var given []operation
		if err := decoder.Decode(&given); err != nil {
			panic(err)
		}
		var history []porcupine.Operation
		for n, o := range given {
			end := int64(math.MaxInt64)
			if o.Return != nil {
				end = *o.Return
			}
			history = append(history, porcupine.Operation{ClientId: n, Input: o, Call: o.Call, Return: end})
		}
		fmt.Println(porcupine.CheckOperationsTimeout(model.ToModel(), history, time.Minute))
	}
}
