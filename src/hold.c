/* SPDX-License-Identifier: MIT
 *
 * hold.c: the holds of a client and the handles on them. No engine is called here.
 */
#include "core.h"
#include "waker.h"
#include <stdio.h>
#include <string.h>

#define SPARE_HOLDS 64
#define FIRST_BUCKETS 64

uint64_t hfi_thread_number(void)
{
    static atomic_uint_fast64_t last;
    static _Thread_local uint64_t mine;
    if (mine == 0)
        mine = atomic_fetch_add(&last, 1) + 1;
    return mine;
}

/* --- the table of those that can be re-entered --- */

static struct hfi_hold **bucket(hf_client *client, uint64_t name_hash)
{
    return &client->buckets[name_hash & (client->bucket_count - 1)];
}

bool hfi_same_owner(const struct hfi_owner_key *a, const struct hfi_owner_key *b)
{
    return a->kind == b->kind && a->number == b->number && strcmp(a->text, b->text) == 0;
}

struct hfi_hold *hfi_hold_find(hf_client *client, const struct hfi_want *want)
{
    if (client->bucket_count == 0)
        return NULL;
    struct hfi_hold *hold = *bucket(client, want->name_hash);
    while (hold && (hold->name_hash != want->name_hash || !hfi_same_owner(&hold->key, &want->key) ||
                    strcmp(hold->name, want->name) != 0))
        hold = hold->next_in_bucket;
    return hold;
}

struct hfi_hold *hfi_hold_of_name(hf_client *client, uint64_t name_hash, const char *name)
{
    struct hfi_hold *hold = client->bucket_count ? *bucket(client, name_hash) : NULL;
    while (hold && (hold->name_hash != name_hash || strcmp(hold->name, name) != 0))
        hold = hold->next_in_bucket;
    return hold;
}

void hfi_hold_set_owner(struct hfi_hold *hold, const struct hfi_owner_key *key, uint64_t own)
{
    memcpy(hold->owner_text, key->text, strlen(key->text) + 1);
    hold->key = *key;
    hold->key.text = hold->owner_text;
    if (hold->key.kind == HF_OWNER_HANDLE && hold->key.number == 0)
        hold->key.number = own; /* an owner of its own, which its handles can show */
}

void hfi_hold_forget(struct hfi_hold *hold)
{
    struct hfi_hold **link = bucket(hold->client, hold->name_hash);
    while (*link && *link != hold)
        link = &(*link)->next_in_bucket;
    if (*link)
        *link = hold->next_in_bucket;
    if (hold->client->turns)
        hfi_line_call_first(hold->client, hold->name_hash, hold->name);
}

static struct hfi_hold **serial_bucket(const hf_client *client, uint64_t serial)
{
    return &client->serials[serial & (client->bucket_count - 1)];
}

struct hfi_hold *hfi_hold_of_serial(const hf_client *client, uint64_t serial)
{
    struct hfi_hold *hold = client->bucket_count ? *serial_bucket(client, serial) : NULL;
    while (hold && hold->owner.serial != serial)
        hold = hold->next_by_serial;
    return hold;
}

static void forget_serial(struct hfi_hold *hold)
{
    struct hfi_hold **link = serial_bucket(hold->client, hold->owner.serial);
    while (*link != hold)
        link = &(*link)->next_by_serial;
    *link = hold->next_by_serial;
}

static void remember_serial(struct hfi_hold *hold)
{
    struct hfi_hold **place = serial_bucket(hold->client, hold->owner.serial);
    hold->next_by_serial = *place;
    *place = hold;
}

static bool grow_buckets(hf_client *client)
{
    if (client->hold_count < client->bucket_count)
        return true;
    const size_t more = client->bucket_count ? 2 * client->bucket_count : FIRST_BUCKETS;
    struct hfi_hold **larger = hfi_alloc(more * sizeof(struct hfi_hold *));
    struct hfi_hold **serials = larger ? hfi_alloc(more * sizeof(struct hfi_hold *)) : NULL;
    if (!serials) {
        hfi_free(larger);
        return client->bucket_count > 0; /* a crowded table still works */
    }
    struct hfi_hold **old = client->buckets;
    const size_t old_count = client->bucket_count;
    client->buckets = larger;
    client->bucket_count = more;
    hfi_free(client->serials);
    client->serials = serials;
    for (struct hfi_hold *hold = client->holds; hold; hold = hold->next)
        remember_serial(hold);
    for (size_t i = 0; i < old_count; i++) {
        for (struct hfi_hold *hold = old[i], *next; hold; hold = next) {
            next = hold->next_in_bucket;
            struct hfi_hold **place = bucket(client, hold->name_hash);
            hold->next_in_bucket = *place;
            *place = hold;
        }
    }
    hfi_free(old);
    return true;
}

/* --- when what is due --- */

static bool reserve_timers(hf_client *client, size_t count)
{
    if (client->undos.room >= count) /* the last of them to grow */
        return true;
    return hfi_timers_reserve(&client->ends, count) && hfi_timers_reserve(&client->renewals, count) &&
           hfi_timers_reserve(&client->undos, count);
}

void hfi_hold_schedule(struct hfi_hold *hold)
{
    hf_client *client = hold->client;
    const bool held = hold->state == HFI_HOLD_HELD;
    const hfi_time renewal = hold->doubted ? HFI_AT_ONCE : hold->lease.renew_at_ns;
    const hfi_time end = hold->why[0] ? HFI_AT_ONCE : hold->lease.deadline_ns;
    hfi_timers_set(&client->ends, &hold->end, held ? end : HFI_NEVER);
    hfi_timers_set(&client->renewals, &hold->renewal, held && !hold->renewing ? renewal : HFI_NEVER);
    hfi_timers_set(&client->undos, &hold->undo, hold->undoing && !hold->pins ? hold->undo_at_ns : HFI_NEVER);
}

void hfi_hold_unpin(struct hfi_hold *hold)
{
    hold->pins--;
    if (!hold->undoing || hold->pins)
        return;
    hfi_hold_schedule(hold);
    hfi_keeper_expect(hold->client, hold->undo_at_ns);
}

/* --- birth and death --- */

struct hfi_hold *hfi_hold_new(hf_client *client, const struct hfi_want *want)
{
    struct hfi_hold *hold = client->free_holds;
    if (!grow_buckets(client) || !reserve_timers(client, client->hold_count + 1))
        return NULL;
    if (hold)
        client->free_holds = hold->next;
    else
        hold = hfi_alloc(sizeof *hold + client->engine->lock_size);
    if (!hold)
        return NULL;
    memset(hold, 0, offsetof(struct hfi_hold, why));
    memset(hold->engine_lock, 0, client->engine->lock_size);
    hold->client = client;
    hold->name_hash = want->name_hash;
    hold->state = HFI_HOLD_PENDING;
    hold->owner = (struct hfi_owner){ client->env.client, ++client->serial };
    hold->once_ms = want->options.once_per_ms;
    hold->lost_fd = -1;
    hold->why[0] = 0;
    hold->trouble_text[0] = 0;
    memcpy(hold->name, want->name, strlen(want->name) + 1);
    hold->note[0] = 0;
    if (want->options.note)
        snprintf(hold->note, sizeof hold->note, "%s", want->options.note);
    hfi_hold_set_owner(hold, &want->key, hold->owner.serial);

    struct hfi_hold **place = bucket(client, hold->name_hash);
    hold->next_in_bucket = *place;
    *place = hold;
    hold->next = client->holds;
    if (hold->next)
        hold->next->prev = hold;
    client->holds = hold;
    remember_serial(hold);
    client->hold_count++;
    client->references++;
    return hold;
}

void hfi_hold_settle(struct hfi_hold *hold)
{
    hf_client *client = hold->client;
    if (hold->state != HFI_HOLD_ENDED || hold->handles || hold->pins || hold->engaged)
        return;
    forget_serial(hold);
    *(hold->prev ? &hold->prev->next : &client->holds) = hold->next;
    if (hold->next)
        hold->next->prev = hold->prev;
    hfi_fd_close(hold->lost_fd);
    client->hold_count--;
    client->references--;
    if (client->hold_count < SPARE_HOLDS) {
        hold->next = client->free_holds;
        client->free_holds = hold;
    } else {
        hfi_free(hold);
    }
}

/* --- loss --- */

void hfi_hold_publish(struct hfi_hold *hold)
{
    atomic_store(&hold->safe_until_ns, hold->lease.deadline_ns);
}

void hfi_hold_lose(struct hfi_hold *hold, const char *why)
{
    hold->state = HFI_HOLD_ENDED;
    hfi_hold_forget(hold);
    atomic_store(&hold->safe_until_ns, 0);
    if (why != hold->why)
        snprintf(hold->why, sizeof hold->why, "%s", why);
    hfi_hold_schedule(hold);
    if (hold->lost_fd >= 0)
        hfi_bell_ring(hold->lost_fd);
}

void hfi_hold_lose_in_store(struct hfi_hold *hold, const char *why)
{
    hfi_hold_lose(hold, *why ? why : "the store no longer has it: it was broken, or ended or forgotten there");
}

/* Why the store was of no help when the time was over. */
static void explain_silence(const struct hfi_hold *hold, char *why, size_t size)
{
    const bool waits = hold->renewing; /* for an answer, at this moment */
    const hfi_time since = hold->trouble_since_ns ? hold->trouble_since_ns : hold->asked_ns;
    const bool refused = hold->trouble_since_ns && hold->trouble != HF_UNAVAILABLE && hold->trouble != HF_UNKNOWN;

    if (!waits && !hold->trouble_since_ns) {
        snprintf(why, size, "it was not renewed in time: this process did not run, or waited for the store");
        return;
    }
    const double seconds = (double)(hfi_now_ns() - since) / HFI_SECOND;
    snprintf(why, size, "the store has %s for %.1f s (%s)", refused ? "refused to renew it" : "been silent", seconds,
             hold->trouble_text[0] && hold->trouble_since_ns ? hold->trouble_text : "no answer");
}

void hfi_hold_lose_by_time(struct hfi_hold *hold)
{
    char why[sizeof hold->why];
    const struct hfi_lease *lease = &hold->lease;

    if (lease->deadline_ns == lease->end_by_ns)
        snprintf(why, sizeof why, "it was held for as long as max_hold_ms allows");
    else if (!lease->terms.renew)
        snprintf(why, sizeof why, "its time-to-live is over, and it was not to be renewed");
    else
        explain_silence(hold, why, sizeof why);
    hfi_hold_lose(hold, why);
}

static hf_lock *next_to_tell(struct hfi_hold *hold)
{
    hf_lock *handle = hold->handles;
    while (handle && (handle->told || !handle->on_lost))
        handle = handle->next;
    return handle;
}

void hfi_hold_tell(struct hfi_hold *hold)
{
    hf_client *client = hold->client;
    hf_lock *handle;
    hold->pins++;
    while ((handle = next_to_tell(hold)) != NULL) {
        handle->told = true;
        hold->teller = hfi_thread_number();
        client->telling++;
        pthread_mutex_unlock(&client->mutex);
        handle->on_lost(handle, hold->why, handle->arg);
        pthread_mutex_lock(&client->mutex);
        hold->teller = 0;
        client->telling--;
        pthread_cond_broadcast(&client->changed); /* hf_release() waits for a callback to return before it frees */
    }
    hfi_hold_unpin(hold);
}

/* --- handles --- */

hf_lock *hfi_handle_new(hf_client *client)
{
    hf_lock *handle = client->free_locks;
    if (handle)
        client->free_locks = handle->next;
    else
        handle = hfi_alloc(sizeof *handle);
    return handle;
}

void hfi_handle_attach(hf_lock *handle, struct hfi_hold *hold, const hf_options *options)
{
    *handle = (hf_lock){ .next = hold->handles,
                         .hold = hold,
                         .generation = hfi_generation,
                         .on_lost = options->on_lost,
                         .arg = options->arg };
    hold->handles = handle;
}

void hfi_handle_free(hf_client *client, hf_lock *handle)
{
    handle->hold = NULL;
    handle->next = client->free_locks;
    client->free_locks = handle;
}

/* For how long its work, which is done, counts as done from now on. */
static uint64_t done_ms(const struct hfi_hold *hold)
{
    const uint64_t since_ms = (uint64_t)((hfi_now_ns() - hold->granted_ns) / HFI_MS);
    return since_ms < hold->once_ms ? hold->once_ms - since_ms : 0;
}

struct hfi_request hfi_hold_request(const struct hfi_hold *hold, hfi_time deadline_ns)
{
    return (struct hfi_request){ .name = hold->name,
                                 .owner = hold->owner,
                                 .ttl_ms = hold->lease.terms.ttl_ms,
                                 .deadline_ns = deadline_ns,
                                 .note = hold->note,
                                 .once = hold->once_ms != 0,
                                 .done_ms = hold->done ? done_ms(hold) : 0 };
}
