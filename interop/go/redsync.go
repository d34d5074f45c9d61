// SPDX-License-Identifier: MIT

package main

import (
	"errors"
	"math/rand"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

type redsyncLibrary struct{ sync *redsync.Redsync }

type redsyncGrant struct{ mutex *redsync.Mutex }

func newRedsync(clients []*redis.Client) library {
	var pools []redsyncredis.Pool
	for _, client := range clients {
		pools = append(pools, goredis.NewPool(client))
	}
	return redsyncLibrary{redsync.New(pools...)}
}

func (l redsyncLibrary) take(name string, ttl, wait time.Duration) (grant, error) {
	// A number of tries and no context: when its context ends, redsync leaves behind what it took from a minority.
	mutex := l.sync.NewMutex(name, redsync.WithExpiry(ttl), redsync.WithTries(int(wait/poll)+1),
		redsync.WithRetryDelayFunc(func(int) time.Duration { return poll/2 + time.Duration(rand.Int63n(int64(poll))) }))
	err := mutex.Lock()
	var taken *redsync.ErrTaken
	if errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return redsyncGrant{mutex}, nil
}

func (l redsyncLibrary) steal(name string) (bool, error) {
	return redsyncGrant{l.sync.NewMutex(name, redsync.WithValue("a value of its own"))}.release()
}

func (g redsyncGrant) extend(time.Duration) error {
	_, err := g.mutex.Extend()
	return err
}

func (g redsyncGrant) release() (bool, error) {
	ok, err := g.mutex.Unlock()
	var taken *redsync.ErrTaken
	if errors.As(err, &taken) || errors.Is(err, redsync.ErrLockAlreadyExpired) {
		return false, nil
	}
	return ok, err
}
