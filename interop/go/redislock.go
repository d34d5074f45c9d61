// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

type redislockLibrary struct{ client *redislock.Client }

type redislockGrant struct{ lock *redislock.Lock }

func newRedislock(client *redis.Client) library {
	return redislockLibrary{redislock.New(client)}
}

func (l redislockLibrary) take(name string, ttl, wait time.Duration) (grant, error) {
	// It appends what it calls metadata to its random value: with some, the value looks like nobody else's.
	options := &redislock.Options{Metadata: " interop"}
	if wait > 0 {
		options.RetryStrategy = redislock.LimitRetry(redislock.LinearBackoff(poll), int(wait/poll))
	}
	// Without a deadline it would wait no longer than the time-to-live.
	ctx, cancel := context.WithTimeout(context.Background(), wait+10*time.Second)
	defer cancel()
	lock, err := l.client.Obtain(ctx, name, ttl, options)
	if errors.Is(err, redislock.ErrNotObtained) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return redislockGrant{lock}, nil
}

func (g redislockGrant) extend(ttl time.Duration) error {
	return g.lock.Refresh(context.Background(), ttl, nil)
}

func (g redislockGrant) release() (bool, error) {
	err := g.lock.Release(context.Background())
	if errors.Is(err, redislock.ErrLockNotHeld) {
		return false, nil
	}
	return err == nil, err
}
