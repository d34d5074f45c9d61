// SPDX-License-Identifier: MIT

package main

import (
	"errors"
	"log"
	"time"

	"github.com/hashicorp/consul/api"
)

// consulLibrary is api.Lock, with one session for all locks.
type consulLibrary struct {
	client  *api.Client
	session string
	prefix  string
}

type consulGrant struct {
	client *api.Client
	lock   *api.Lock
	key    string
}

func newConsul(address, prefix string, timeout time.Duration) library {
	client, err := api.NewClient(&api.Config{Address: address})
	if err != nil {
		log.Fatal(err)
	}
	// The shortest lock-delay that is not taken for the default of 15 s: the command is there to show that one.
	entry := &api.SessionEntry{Name: "interop", TTL: timeout.String(), LockDelay: time.Millisecond}
	session, _, err := client.Session().Create(entry, nil)
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		log.Print("renewal has ended: ", client.Session().RenewPeriodic(timeout.String(), session, nil, nil))
	}()
	return consulLibrary{client, session, prefix}
}

func (l consulLibrary) take(name string, _, wait time.Duration) (grant, error) {
	if wait == 0 {
		wait = time.Millisecond // nothing would mean the default, 15 s
	}
	key := l.prefix + name + "/.lock"
	lock, err := l.client.LockOpts(&api.LockOptions{Key: key, Session: l.session, LockTryOnce: true, LockWaitTime: wait})
	if err != nil {
		return nil, err
	}
	lost, err := lock.Lock(nil)
	if err != nil {
		return nil, err
	}
	if lost == nil {
		return nil, nil
	}
	return consulGrant{l.client, lock, key}, nil
}

// release cannot tell whether the session still had the key: the library does not look at the answer.
func (g consulGrant) release() (bool, error) {
	err := g.lock.Unlock()
	if errors.Is(err, api.ErrLockNotHeld) {
		return false, nil
	}
	return err == nil, err
}

// token is the index of the write that took the key: the next one is later, whoever makes it.
func (g consulGrant) token() (int64, error) {
	pair, _, err := g.client.KV().Get(g.key, &api.QueryOptions{RequireConsistent: true})
	if err != nil {
		return 0, err
	}
	if pair == nil {
		return 0, errors.New("the key is gone")
	}
	return int64(pair.ModifyIndex), nil
}
