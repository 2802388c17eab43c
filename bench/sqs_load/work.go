package main

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	batch = 10
	path  = "/v1/spaces/default/queues/bench"
)

// asker is one connection, and what it asks again and again.
type asker struct {
	wire
	signer
	all    *counts
	job    *job
	buffer []byte
	queue  string // the beginning of a body, with the queue's address
	mark   []byte // what stands before a receipt
}

func work(one *job, all *counts, number int) error {
	host := "127.0.0.1:" + strconv.Itoa(one.Port)
	a := &asker{wire: wire{address: host}, all: all, job: one, mark: []byte(`"ReceiptHandle"`)}
	a.signer = signer{key: one.Key, secret: one.Secret, region: one.Region, host: host}
	if len(one.Queues) > 0 {
		a.queue = `{"QueueUrl":"` + one.Queues[number%len(one.Queues)] + `"`
	}
	switch one.Kind {
	case "single":
		return a.singles()
	case "batch":
		return a.batches()
	case "rest":
		a.mark = []byte(`"receipt"`)
		return a.own()
	case "fill":
		return a.fill()
	case "idle":
		// Spread over the time of a poll, as those are of clients that have come and gone.
		pause(20 * float64(number) / float64(one.Connections))
		return a.polls()
	}
	return fmt.Errorf("no such kind: %q", one.Kind)
}

func text(size int) string {
	return strings.Repeat("0123456789abcdef", size/16+1)[:size]
}

func (a *asker) call(action string, body []byte) ([]byte, error) {
	a.buffer = a.signer.write(a.buffer[:0], action, body)
	a.all.requests.Add(1)
	return a.ask(a.buffer)
}

// receipts calls for each receipt of an answer, and tells how many there were.
func (a *asker) receipts(answer []byte, each func(receipt []byte)) int {
	count := 0
	for {
		at := bytes.Index(answer, a.mark)
		if at < 0 {
			return count
		}
		answer = answer[at+len(a.mark):]
		answer = answer[bytes.IndexByte(answer, '"')+1:]
		end := bytes.IndexByte(answer, '"')
		each(answer[:end])
		answer = answer[end:]
		count++
	}
}

func (a *asker) singles() error {
	send := []byte(a.queue + `,"MessageBody":"` + text(a.job.Size) + `"}`)
	receive := []byte(a.queue + `,"MaxNumberOfMessages":1,"WaitTimeSeconds":10}`)
	var remove []byte
	for !a.all.stop.Load() {
		if _, err := a.call("SendMessage", send); err != nil {
			return err
		}
		for {
			answer, err := a.call("ReceiveMessage", receive)
			if err != nil {
				return err
			}
			remove = append(remove[:0], a.queue...)
			found := a.receipts(answer, func(receipt []byte) {
				remove = append(remove, `,"ReceiptHandle":"`...)
				remove = append(remove, receipt...)
				remove = append(remove, `"}`...)
			})
			if found == 1 {
				break
			}
			a.all.empty.Add(1)
			if a.all.stop.Load() {
				return nil
			}
		}
		if _, err := a.call("DeleteMessage", remove); err != nil {
			return err
		}
		a.all.messages.Add(1)
	}
	return nil
}

func (a *asker) several() []byte {
	body := a.queue + `,"Entries":[`
	for one := 0; one < batch; one++ {
		if one > 0 {
			body += ","
		}
		body += `{"Id":"` + strconv.Itoa(one) + `","MessageBody":"` + text(a.job.Size) + `"}`
	}
	return []byte(body + "]}")
}

func (a *asker) batches() error {
	send := a.several()
	receive := []byte(a.queue + `,"MaxNumberOfMessages":10,"WaitTimeSeconds":10}`)
	var remove []byte
	for !a.all.stop.Load() {
		if err := a.sent(send); err != nil {
			return err
		}
		// As many as were sent, so that none is left behind.
		for left := batch; left > 0; {
			answer, err := a.call("ReceiveMessage", receive)
			if err != nil {
				return err
			}
			count := 0
			remove = append(append(remove[:0], a.queue...), `,"Entries":[`...)
			found := a.receipts(answer, func(receipt []byte) {
				if count > 0 {
					remove = append(remove, ',')
				}
				remove = append(remove, `{"Id":"`...)
				remove = strconv.AppendInt(remove, int64(count), 10)
				remove = append(remove, `","ReceiptHandle":"`...)
				remove = append(remove, receipt...)
				remove = append(remove, `"}`...)
				count++
			})
			if found == 0 {
				a.all.empty.Add(1)
				if a.all.stop.Load() {
					return nil
				}
				continue
			}
			remove = append(remove, "]}"...)
			answer, err = a.call("DeleteMessageBatch", remove)
			if err != nil {
				return err
			}
			if done := bytes.Count(answer, []byte(`"Id"`)); done != found || refused(answer) {
				return fmt.Errorf("of %d were deleted %d: %s", found, done, answer)
			}
			a.all.messages.Add(int64(found))
			left -= found
		}
	}
	return nil
}

// sent sends a batch, of which nothing may be refused.
func (a *asker) sent(body []byte) error {
	answer, err := a.call("SendMessageBatch", body)
	if err != nil {
		return err
	}
	if bytes.Count(answer, []byte(`"MessageId"`)) != batch || refused(answer) {
		return fmt.Errorf("not all were sent: %s", answer)
	}
	return nil
}

func refused(answer []byte) bool {
	return bytes.Contains(answer, []byte(`"SenderFault"`))
}

// own asks the same of our own API: batches of 10, by a token.
func (a *asker) own() error {
	body := `{"messages":[`
	for one := 0; one < batch; one++ {
		if one > 0 {
			body += ","
		}
		body += `{"body":"` + text(a.job.Size) + `"}`
	}
	send := a.plain("/messages", []byte(body+"]}"))
	lease := a.plain("/leases", []byte(`{"count":10,"wait":10}`))
	var settle []byte
	for !a.all.stop.Load() {
		if _, err := a.tell(send); err != nil {
			return err
		}
		for left := batch; left > 0; {
			answer, err := a.tell(lease)
			if err != nil {
				return err
			}
			settle = append(settle[:0], `{"receipts":[`...)
			found := a.receipts(answer, func(receipt []byte) {
				settle = append(append(append(settle, '"'), receipt...), `",`...)
			})
			if found == 0 {
				a.all.empty.Add(1)
				if a.all.stop.Load() {
					return nil
				}
				continue
			}
			settle = append(settle[:len(settle)-1], "]}"...)
			if _, err := a.tell(a.plain("/settle", settle)); err != nil {
				return err
			}
			a.all.messages.Add(int64(found))
			left -= found
		}
	}
	return nil
}

func (a *asker) plain(below string, body []byte) []byte {
	head := "POST " + path + below + " HTTP/1.1\r\nHost: " + a.address +
		"\r\nContent-Type: application/json\r\nAuthorization: Bearer " + a.job.Token
	return ended([]byte(head), body)
}

func (a *asker) tell(request []byte) ([]byte, error) {
	a.all.requests.Add(1)
	return a.ask(request)
}

func (a *asker) fill() error {
	send := a.several()
	for a.all.messages.Add(batch) <= a.job.Messages {
		if err := a.sent(send); err != nil {
			return err
		}
	}
	// It was not sent, and is not counted.
	a.all.messages.Add(-batch)
	return nil
}

// polls waits for what does not come, again and again.
func (a *asker) polls() error {
	receive := []byte(a.queue + `,"WaitTimeSeconds":20}`)
	for {
		began := time.Now()
		answer, err := a.call("ReceiveMessage", receive)
		if err != nil {
			return err
		}
		if bytes.Contains(answer, a.mark) || time.Since(began) < 19*time.Second {
			return fmt.Errorf("a poll has ended after %s: %s", time.Since(began), answer)
		}
		a.all.empty.Add(1)
	}
}
