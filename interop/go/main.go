// SPDX-License-Identifier: MIT
//
// peer: redsync and bsm/redislock, played by interop/run through one line at a time (see interop/README.md).
//
//	peer redsync HOST:PORT...      one server, or the masters of a Redlock
//	peer redislock HOST:PORT
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const poll = 20 * time.Millisecond

// grant is a lock that was taken. Neither library renews by itself: extend is called by a keeper.
type grant interface {
	extend(ttl time.Duration) error
	// release answers false if the library says that the lock was not held any more.
	release() (bool, error)
}

// library takes a lock: grant is nil, without an error, if somebody else has it until wait is over.
type library interface {
	take(name string, ttl, wait time.Duration) (grant, error)
	// steal releases with a value of its own, as if it had held the lock.
	steal(name string) (bool, error)
}

// held is a grant and what stops its keeper; stop is nil without one.
type held struct {
	grant
	stop chan struct{}
	done chan struct{}
}

type peer struct {
	library library
	locks   map[string]held
}

func (p *peer) take(name string, ttl, wait time.Duration, keep bool) (string, error) {
	taken, err := p.library.take(name, ttl, wait)
	if err != nil {
		return "", err
	}
	if taken == nil {
		return "busy", nil
	}
	lock := held{grant: taken}
	if keep {
		lock.stop, lock.done = make(chan struct{}), make(chan struct{})
		go lock.keep(ttl)
	}
	p.locks[name] = lock
	return "held", nil
}

func (h held) keep(ttl time.Duration) {
	defer close(h.done)
	ticker := time.NewTicker(ttl / 3)
	defer ticker.Stop()
	for {
		select {
		case <-h.stop:
			return
		case <-ticker.C:
			if err := h.extend(ttl); err != nil {
				log.Print("extend: ", err)
			}
		}
	}
}

func (p *peer) release(name string) (bool, error) {
	lock, ok := p.locks[name]
	if !ok {
		return false, fmt.Errorf("%s was never held", name)
	}
	delete(p.locks, name)
	if lock.stop != nil {
		close(lock.stop)
		<-lock.done
	}
	return lock.release()
}

func released(ok bool, err error) (string, error) {
	if err != nil {
		return "", err
	}
	if !ok {
		return "refused", nil
	}
	return "released", nil
}

func (p *peer) obey(words []string) (string, error) {
	var times [2]time.Duration // time-to-live, and how long to wait
	for i := 2; i < len(words) && i < 4; i++ {
		number, err := strconv.Atoi(words[i])
		if err != nil {
			return "", err
		}
		times[i-2] = time.Duration(number) * time.Millisecond
	}
	if len(words) < 2 {
		return "", fmt.Errorf("a command needs the name of a lock")
	}
	switch words[0] {
	case "try", "acquire":
		return p.take(words[1], times[0], times[1], false)
	case "keep":
		return p.take(words[1], times[0], times[1], true)
	case "release":
		return released(p.release(words[1]))
	case "steal":
		return released(p.library.steal(words[1]))
	}
	return "", fmt.Errorf("unknown command %s", words[0])
}

func main() {
	var clients []*redis.Client
	for _, address := range os.Args[2:] {
		client := redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1})
		if err := client.Ping(context.Background()).Err(); err != nil {
			log.Fatal(err)
		}
		clients = append(clients, client)
	}
	p := peer{library: newRedsync(clients), locks: map[string]held{}}
	if os.Args[1] == "redislock" {
		p.library = newRedislock(clients[0])
	}
	fmt.Println("ready")
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() && input.Text() != "quit" {
		answer, err := p.obey(strings.Fields(input.Text()))
		if err != nil {
			answer = "error " + strings.ReplaceAll(err.Error(), "\n", " ")
		}
		fmt.Println(answer)
	}
}
