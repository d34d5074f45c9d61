// SPDX-License-Identifier: MIT
//
// peer: locks of Go libraries, played by interop/run through one line at a time (see interop/README.md).
//
//	peer redsync HOST:PORT...      one server, or the masters of a Redlock
//	peer redislock HOST:PORT
//	peer go-zookeeper|etcd-go|consul-go SESSION_MS PREFIX HOST:PORT
package main

import (
	"bufio"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"
)

// grant is a lock that was taken.
type grant interface {
	// release answers false if the library says that the lock was not held any more.
	release() (bool, error)
}

// extender is a grant that its library does not renew by itself: extend is called by a keeper.
type extender interface {
	extend(ttl time.Duration) error
}

// numbered is a grant with a number that is greater than that of every earlier one.
type numbered interface {
	token() (int64, error)
}

// library takes a lock: grant is nil, without an error, if somebody else has it until wait is over.
type library interface {
	take(name string, ttl, wait time.Duration) (grant, error)
}

// thief is a library that lets one try to release what it never held.
type thief interface {
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
	if lease, ok := taken.(extender); ok && keep {
		lock.stop, lock.done = make(chan struct{}), make(chan struct{})
		go lock.keep(lease, ttl)
	}
	p.locks[name] = lock
	return "held", nil
}

func (h held) keep(lease extender, ttl time.Duration) {
	defer close(h.done)
	ticker := time.NewTicker(ttl / 3)
	defer ticker.Stop()
	for {
		select {
		case <-h.stop:
			return
		case <-ticker.C:
			if err := lease.extend(ttl); err != nil {
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

func (p *peer) token(name string) (string, error) {
	lock, ok := p.locks[name].grant.(numbered)
	if !ok {
		return "", fmt.Errorf("%s is not held, or has no number", name)
	}
	number, err := lock.token()
	return strconv.FormatInt(number, 10), err
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
		if library, ok := p.library.(thief); ok {
			return released(library.steal(words[1]))
		}
		return "", fmt.Errorf("a lock of this library comes into being only by being taken")
	case "token":
		return p.token(words[1])
	case "pairs":
		return p.pairs(words[1], int(times[0]/time.Millisecond))
	}
	return "", fmt.Errorf("unknown command %s", words[0])
}

func newLibrary(kind string, arguments []string) library {
	switch kind {
	case "redsync":
		return newRedsync(connect(arguments))
	case "redislock":
		return newRedislock(connect(arguments)[0])
	}
	session, err := strconv.Atoi(arguments[0])
	if err != nil {
		log.Fatal(err)
	}
	timeout, prefix, address := time.Duration(session)*time.Millisecond, arguments[1], arguments[2]
	switch kind {
	case "go-zookeeper":
		return goZookeeper{address, prefix, timeout}
	case "etcd-go":
		return newEtcd(address, prefix, timeout)
	case "consul-go":
		return newConsul(address, prefix, timeout)
	}
	log.Fatal("unknown library ", kind)
	return nil
}

func main() {
	p := peer{library: newLibrary(os.Args[1], os.Args[2:]), locks: map[string]held{}}
	fmt.Println("ready")
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() && input.Text() != "quit" {
		answer, err := p.timed(strings.Fields(input.Text()))
		if err != nil {
			answer = "error " + strings.ReplaceAll(err.Error(), "\n", " ")
		}
		fmt.Println(answer)
	}
}
