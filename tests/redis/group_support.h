/* SPDX-License-Identifier: MIT
 *
 * group_support.h: what the tests of locks on groups of servers share: locks that are held while servers come and go,
 * and servers that are kept from knowing of them.
 */
#ifndef GROUP_SUPPORT_H
#define GROUP_SUPPORT_H

#include "redis_group.h"
#include "redis_support.h"

/* Long enough for no renewal to be due while the test runs: what is noticed was noticed for another reason. */
#define LONG_TTL_MS test_ms(90000)
/* Outlasts a failover, and is renewed in its course. */
#define MEDIUM_TTL_MS test_ms(15000)

/* A lock, and what its holder was told. */
struct held {
    hf_client *client;
    hf_lock *lock;
    const char *name;
    struct loss loss;
    int64_t asked_ns;
    uint32_t ttl_ms;
    int64_t end_ns; /* when it ended, as it was acquired, marked, or seen to be renewed */
    char why[200];
};

/* As a stranger; from a client that belongs to the caller. */
struct held *hold(hf_client *client, const char *name, uint32_t ttl_ms);
/* Releases, which must end as expected; the loss was told once after a loss, else never. */
void held_finish(struct held *held, hf_status expected);
/* Waits until it has been renewed since it was acquired, marked, or last seen to be renewed. */
void await_renewal(struct held *held);
void held_mark(struct held *held);
/* Waits for the loss, which must be told before the lock's next renewal would be due. */
void await_prompt_loss(struct held *held);
/* It is held by what `server` knows, with this token. */
void check_held_at(struct redis_server *server, const struct held *held);
/* Waits until `server` knows the lock: a replica that is a moment behind. */
void await_known(struct redis_server *server, const char *name);

/* The replicas of `master` lose their link and get no new one, though both sides stay well. */
void refuse_replicas(struct redis_server *master);

/* Waits until each of them has got the lock, in whichever order, one after the other, with tokens that grow from `last`
 * on; each gives it back. */
void take_turns(struct waiter *waiters, int count, uint64_t last);

/* Acquires and releases, and fails if that cannot be done. */
void check_usable(hf_client *client, const char *name);

#endif
