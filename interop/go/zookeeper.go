// SPDX-License-Identifier: MIT

package main

import (
	"errors"
	"time"

	"github.com/go-zookeeper/zk"
)

// goZookeeper has a session for each lock: its Lock knows no end but the session's, so that one that is not to be
// waited for any longer can be left in no other way.
type goZookeeper struct {
	address, prefix string
	timeout         time.Duration
}

type goZookeeperGrant struct {
	conn *zk.Conn
	lock *zk.Lock
	path string
}

// A little time for one that does not wait: Lock does not say that it has begun to.
const notWaiting = time.Second

func (l goZookeeper) take(name string, _, wait time.Duration) (grant, error) {
	conn, _, err := zk.Connect([]string{l.address}, l.timeout, zk.WithLogInfo(false))
	if err != nil {
		return nil, err
	}
	path := l.prefix + name
	lock := zk.NewLock(conn, path, zk.WorldACL(zk.PermAll))
	done := make(chan error, 1)
	go func() { done <- lock.Lock() }()
	select {
	case err = <-done:
	case <-time.After(max(wait, notWaiting)):
		conn.Close()
		return nil, nil
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return goZookeeperGrant{conn, lock, path}, nil
}

func max(a, b time.Duration) time.Duration {
	if a > b {
		return a
	}
	return b
}

func (g goZookeeperGrant) release() (bool, error) {
	err := g.lock.Unlock()
	g.conn.Close()
	if errors.Is(err, zk.ErrNotLocked) || errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrSessionExpired) {
		return false, nil
	}
	return err == nil, err
}

// token is the transaction that made the node; the library keeps the node's name to itself, but its session owns it.
func (g goZookeeperGrant) token() (int64, error) {
	nodes, _, err := g.conn.Children(g.path)
	if err != nil {
		return 0, err
	}
	for _, node := range nodes {
		_, stat, err := g.conn.Get(g.path + "/" + node)
		if err == nil && stat.EphemeralOwner == g.conn.SessionID() {
			return stat.Czxid, nil
		}
	}
	return 0, errors.New("no node of this session")
}
