// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"errors"
	"log"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// etcdLibrary is the package concurrency of etcd's own client: one lease, which keeps itself alive, for all locks.
type etcdLibrary struct {
	session *concurrency.Session
	prefix  string
}

type etcdGrant struct{ mutex *concurrency.Mutex }

func newEtcd(address, prefix string, timeout time.Duration) library {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, DialTimeout: patience})
	if err != nil {
		log.Fatal(err)
	}
	session, err := concurrency.NewSession(client, concurrency.WithTTL(int(timeout/time.Second)))
	if err != nil {
		log.Fatal(err)
	}
	return etcdLibrary{session, prefix}
}

func (l etcdLibrary) take(name string, _, wait time.Duration) (grant, error) {
	mutex := concurrency.NewMutex(l.session, l.prefix+name)
	ctx, cancel := context.WithTimeout(context.Background(), wait+patience)
	defer cancel()
	if wait == 0 {
		err := mutex.TryLock(ctx)
		if errors.Is(err, concurrency.ErrLocked) {
			return nil, nil
		}
		return etcdGrant{mutex}, err
	}
	waiting, cancelWaiting := context.WithTimeout(ctx, wait)
	defer cancelWaiting()
	err := mutex.Lock(waiting)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, nil
	}
	return etcdGrant{mutex}, err
}

// release cannot tell whether the key was still there: the library deletes it by name and does not look.
func (g etcdGrant) release() (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := g.mutex.Unlock(ctx)
	return err == nil, err
}

// token is what etcdctl hands to a command as ETCD_LOCK_REV.
func (g etcdGrant) token() (int64, error) {
	return g.mutex.Header().Revision, nil
}
