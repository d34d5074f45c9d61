/* SPDX-License-Identifier: MIT
 *
 * scene.h: a lock that is held and waited for while something happens to the store, for tests that have a store of
 * their own to which it can happen.
 */
#ifndef SCENE_H
#define SCENE_H

#include "conformance.h"

struct scene {
    const char *name;
    hf_client *client, *other; /* the holder's, and the waiter's */
    hf_lock *lock;
    uint64_t token;
    struct loss loss;
    struct waiter waiter;
    bool in_trouble; /* set it where a server that was just hit may lose one more answer to a release */
};

/* `ttl_ms` may be 0. */
void scene_begin(struct scene *scene, const char *name, uint32_t ttl_ms);
/* The lock was kept all the time. Gives it back. */
void scene_check_kept(struct scene *scene);
/* The holder is told that it has lost the lock. */
void scene_check_lost(struct scene *scene);
/* The lock goes on to the waiter, with a greater token, and then comes free. */
void scene_end(struct scene *scene);

/* A release whose first answer was lost with a server, or is late, may have to be finished in the background, which is
 * seen by who gets the lock next. */
void release_in_trouble(hf_lock *lock);

#endif
