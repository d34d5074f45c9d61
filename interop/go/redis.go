// SPDX-License-Identifier: MIT

package main

import (
	"context"
	"log"
	"time"

	"github.com/redis/go-redis/v9"
)

const poll = 20 * time.Millisecond

func connect(addresses []string) []*redis.Client {
	var clients []*redis.Client
	for _, address := range addresses {
		client := redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1})
		if err := client.Ping(context.Background()).Err(); err != nil {
			log.Fatal(err)
		}
		clients = append(clients, client)
	}
	return clients
}
