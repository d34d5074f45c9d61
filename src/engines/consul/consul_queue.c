/* SPDX-License-Identifier: MIT
 *
 * consul_queue.c: who comes before whom. Consul has no queue; this one stands beside the lock, where clients of others
 * do not look: a key for each who waits, held by its session, in order of creation. A holder that came from the queue
 * keeps its place until it releases, so that its successor alone sees it go.
 */
#include "consul.h"
#include <stdio.h>
#include <string.h>

/* Keeps the latest place before ours as `last`, and the others in any order. */
static void add_ahead(struct consul_view *view, const struct consul_entry *place)
{
    if (view->ahead_count < HFI_CONSUL_AHEAD_MOST)
        view->ahead[view->ahead_count] = place->holder.owner;
    view->ahead_count++;
    if (!view->last.key || place->created > view->last.created)
        view->last = *place;
}

static void look_at_places(struct consul_view *view, const struct consul_answer *answer, const char *lock_key,
                           struct hfi_owner owner)
{
    const size_t stem = strlen(lock_key) - strlen("lock");
    struct consul_entry entry;
    for (size_t i = 0; i < hfi_consul_entries(answer); i++) {
        const bool read = hfi_consul_entry(answer, i, &entry);
        const bool place = read && strncmp(entry.key, lock_key, stem) == 0 &&
                           strncmp(entry.key + stem, "holdfast/", 9) == 0 && *entry.session &&
                           entry.holder.owner.client;
        if (!place || hfi_consul_same(entry.holder.owner, owner))
            continue;
        view->waited = true;
        if (!view->place.key || entry.created < view->place.created)
            add_ahead(view, &entry);
    }
}

void hfi_consul_view(struct consul_view *view, const struct consul_answer *answer, const struct consul_store *store,
                     const char *name, struct hfi_owner owner)
{
    char lock[HFI_CONSUL_KEY_MAX], place[HFI_CONSUL_KEY_MAX], marker[HFI_CONSUL_KEY_MAX];
    struct consul_entry entry;
    *view = (struct consul_view){ .free = true };
    hfi_consul_key(lock, store, CONSUL_LOCK, name, owner);
    hfi_consul_key(place, store, CONSUL_PLACE, name, owner);
    hfi_consul_key(marker, store, CONSUL_MARKER, name, owner);
    for (size_t i = 0; i < hfi_consul_entries(answer); i++) {
        if (!hfi_consul_entry(answer, i, &entry))
            continue;
        if (strcmp(entry.key, lock) == 0)
            view->lock = entry; /* what a transaction has just done comes first, what is there then comes last */
        else if (strcmp(entry.key, place) == 0)
            view->place = entry;
        else if (strcmp(entry.key, marker) == 0)
            view->marker = entry.modified;
    }
    if (view->lock.key) {
        view->free = !*view->lock.session;
        view->mine = !view->free && hfi_consul_same(view->lock.holder.owner, owner);
        view->foreign = view->lock.flags != HFI_CONSUL_LOCK_FLAGS;
    }
    look_at_places(view, answer, lock, owner);
}

void hfi_consul_say_who(char out[160], const struct consul_entry *lock)
{
    if (lock->holder.owner.client)
        snprintf(out, 160, "%s:%lld%s%.80s", lock->holder.host, lock->holder.pid, *lock->holder.note ? " " : "",
                 lock->holder.note);
    else if (lock->key && *lock->session)
        snprintf(out, 160, "another client of Consul, session %.40s", lock->session);
    else
        out[0] = 0;
}
