// A load client of SQS that is not the bottleneck: raw connections, requests that are all signed
// (SigV4) as AWS JSON 1.0, and of answers only what the next request needs.
//
// It reads one JSON object (job) from its standard input and prints one (told).
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// job is what is to be asked.
type job struct {
	Kind        string   `json:"kind"`
	Port        int      `json:"port"`
	Pids        []int    `json:"pids"` // of the server, whose CPU time is told
	Connections int      `json:"connections"`
	Seconds     float64  `json:"seconds"`
	Warm        float64  `json:"warm"`     // before it is measured
	Messages    int64    `json:"messages"` // of a fill, how many
	Size        int      `json:"size"`
	Queues      []string `json:"queues"` // their addresses; the connections take turns
	Key         string   `json:"key"`
	Secret      string   `json:"secret"`
	Region      string   `json:"region"`
	Token       string   `json:"token"` // of our own API
}

// told is what came of it, of the measured time alone.
type told struct {
	Messages  int64   `json:"messages"`
	Requests  int64   `json:"requests"`
	Empty     int64   `json:"empty"` // receives that brought nothing
	Seconds   float64 `json:"seconds"`
	ClientCPU float64 `json:"client_cpu"`
	ServerCPU float64 `json:"server_cpu"`
}

type counts struct {
	messages, requests, empty atomic.Int64
	stop                      atomic.Bool
}

func main() {
	var one job
	if err := json.NewDecoder(os.Stdin).Decode(&one); err != nil {
		fail(err)
	}
	var all counts
	before, began := seen(&one, &all), time.Now()
	var working sync.WaitGroup
	for number := 0; number < one.Connections; number++ {
		working.Add(1)
		go func(number int) {
			defer working.Done()
			if err := work(&one, &all, number); err != nil && !all.stop.Load() {
				fail(err)
			}
		}(number)
	}
	if one.Kind == "fill" {
		working.Wait()
	} else {
		pause(one.Warm)
		before, began = seen(&one, &all), time.Now()
		pause(one.Seconds)
	}
	after := seen(&one, &all)
	result := told{
		Messages:  after.Messages - before.Messages,
		Requests:  after.Requests - before.Requests,
		Empty:     after.Empty - before.Empty,
		Seconds:   time.Since(began).Seconds(),
		ClientCPU: after.ClientCPU - before.ClientCPU,
		ServerCPU: after.ServerCPU - before.ServerCPU,
	}
	all.stop.Store(true)
	if one.Kind == "single" || one.Kind == "batch" || one.Kind == "rest" {
		// Whoever is in the middle ends its round: nothing is left behind for the next.
		working.Wait()
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		fail(err)
	}
}

func pause(seconds float64) {
	time.Sleep(time.Duration(seconds * float64(time.Second)))
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "sqs_load:", err)
	os.Exit(1)
}

func seen(one *job, all *counts) told {
	return told{
		Messages:  all.messages.Load(),
		Requests:  all.requests.Load(),
		Empty:     all.empty.Load(),
		ClientCPU: ownCPU(),
		ServerCPU: cpuOf(one.Pids),
	}
}

func ownCPU() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		fail(err)
	}
	return seconds(usage.Utime) + seconds(usage.Stime)
}

func seconds(of syscall.Timeval) float64 {
	return float64(of.Sec) + float64(of.Usec)/1e6
}

// cpuOf tells the CPU seconds of processes and their threads.
func cpuOf(pids []int) float64 {
	ticks := 0
	for _, pid := range pids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			fail(err)
		}
		text := string(data)
		fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
		user, _ := strconv.Atoi(fields[11])
		system, _ := strconv.Atoi(fields[12])
		ticks += user + system
	}
	return float64(ticks) / 100
}
