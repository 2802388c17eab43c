package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// wire is one connection, which is made anew where the server closes it after an answer.
type wire struct {
	address string
	open    net.Conn
	reader  *bufio.Reader
	body    []byte
}

func ended(buffer, body []byte) []byte {
	buffer = append(buffer, "\r\nContent-Length: "...)
	buffer = strconv.AppendInt(buffer, int64(len(body)), 10)
	buffer = append(buffer, "\r\n\r\n"...)
	return append(buffer, body...)
}

// ask sends a request and returns the body of its answer, which is good until the next.
func (w *wire) ask(request []byte) ([]byte, error) {
	if w.open == nil {
		open, err := net.DialTimeout("tcp", w.address, time.Minute)
		if err != nil {
			return nil, err
		}
		w.open = open
		w.reader = bufio.NewReaderSize(open, 4096)
	}
	if _, err := w.open.Write(request); err != nil {
		return nil, err
	}
	line, err := w.line()
	if err != nil {
		return nil, err
	}
	if len(line) < 12 {
		return nil, fmt.Errorf("no answer: %q", line)
	}
	good := line[9] == '2'
	first := string(line)
	length, last := -1, bytes.HasPrefix(line, []byte("HTTP/1.0"))
	for {
		line, err = w.line()
		if err != nil {
			return nil, err
		}
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("content-length")):
			if length, err = strconv.Atoi(string(value)); err != nil {
				return nil, err
			}
		case bytes.EqualFold(name, []byte("connection")):
			last = last || bytes.EqualFold(value, []byte("close"))
		}
	}
	if length < 0 {
		return nil, fmt.Errorf("an answer without a length: %s", first)
	}
	if cap(w.body) < length {
		w.body = make([]byte, length)
	}
	body := w.body[:length]
	if _, err := io.ReadFull(w.reader, body); err != nil {
		return nil, err
	}
	if last {
		w.open.Close()
		w.open = nil
	}
	if !good {
		return nil, fmt.Errorf("refused: %s: %s", first, body)
	}
	return body, nil
}

func (w *wire) line() ([]byte, error) {
	line, err := w.reader.ReadSlice('\n')
	return bytes.TrimRight(line, "\r\n"), err
}
