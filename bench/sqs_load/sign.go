package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"time"
)

const (
	kind   = "application/x-amz-json-1.0"
	signed = "content-type;host;x-amz-date;x-amz-target"
)

// signer signs the requests of one connection; what a day's requests share is made once.
type signer struct {
	key, secret, region, host string
	day, scope                string
	mac                       hash.Hash
}

func keyed(key []byte, text string) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

// write appends a signed request to a buffer.
func (s *signer) write(buffer []byte, action string, body []byte) []byte {
	at := time.Now().UTC().Format("20060102T150405Z")
	if at[:8] != s.day {
		s.day = at[:8]
		s.scope = s.day + "/" + s.region + "/sqs/aws4_request"
		key := keyed([]byte("AWS4"+s.secret), s.day)
		for _, part := range []string{s.region, "sqs", "aws4_request"} {
			key = keyed(key, part)
		}
		s.mac = hmac.New(sha256.New, key)
	}
	target := "AmazonSQS." + action
	sum := sha256.Sum256(body)
	canonical := make([]byte, 0, 512)
	canonical = append(canonical, "POST\n/\n\ncontent-type:"+kind+"\nhost:"...)
	canonical = append(canonical, s.host...)
	canonical = append(canonical, "\nx-amz-date:"...)
	canonical = append(canonical, at...)
	canonical = append(canonical, "\nx-amz-target:"...)
	canonical = append(canonical, target...)
	canonical = append(canonical, "\n\n"+signed+"\n"...)
	canonical = hex.AppendEncode(canonical, sum[:])
	whole := sha256.Sum256(canonical)

	text := make([]byte, 0, 256)
	text = append(text, "AWS4-HMAC-SHA256\n"...)
	text = append(text, at...)
	text = append(text, '\n')
	text = append(text, s.scope...)
	text = append(text, '\n')
	text = hex.AppendEncode(text, whole[:])
	s.mac.Reset()
	s.mac.Write(text)

	buffer = append(buffer, "POST / HTTP/1.1\r\nHost: "...)
	buffer = append(buffer, s.host...)
	buffer = append(buffer, "\r\nContent-Type: "+kind+"\r\nX-Amz-Target: "...)
	buffer = append(buffer, target...)
	buffer = append(buffer, "\r\nX-Amz-Date: "...)
	buffer = append(buffer, at...)
	buffer = append(buffer, "\r\nAuthorization: AWS4-HMAC-SHA256 Credential="...)
	buffer = append(buffer, s.key...)
	buffer = append(buffer, '/')
	buffer = append(buffer, s.scope...)
	buffer = append(buffer, ", SignedHeaders="+signed+", Signature="...)
	var mark [sha256.Size]byte
	buffer = hex.AppendEncode(buffer, s.mac.Sum(mark[:0]))
	return ended(buffer, body)
}
