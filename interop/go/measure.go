// SPDX-License-Identifier: MIT

package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const patience = 20 * time.Second

// now is on the clock that all processes of a machine share.
func now() int64 {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &at); err != nil {
		panic(err)
	}
	return at.Nano()
}

// timed obeys, and after the word "timed" adds to the answer when the call began and when it was back.
func (p *peer) timed(words []string) (string, error) {
	if len(words) == 0 || words[0] != "timed" {
		return p.obey(words)
	}
	called := now()
	answer, err := p.obey(words[1:])
	return fmt.Sprint(answer, " ", called, " ", now()), err
}

// pairs takes and releases a lock that nobody else wants, and answers with what each pair took, in nanoseconds.
func (p *peer) pairs(name string, count int) (string, error) {
	times := make([]string, count)
	for i := range times {
		start := now()
		lock, err := p.library.take(name, patience, patience)
		if err != nil {
			return "", err
		}
		if lock == nil {
			return "", fmt.Errorf("%s is not free", name)
		}
		if _, err := lock.release(); err != nil {
			return "", err
		}
		times[i] = strconv.FormatInt(now()-start, 10)
	}
	return strings.Join(times, " "), nil
}
