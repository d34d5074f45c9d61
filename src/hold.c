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

static struct hfi_hold **bucket(hf_client *client, uint32_t name_hash)
{
    return &client->buckets[name_hash & (client->bucket_count - 1)];
}

bool hfi_same_owner(const struct hfi_owner_key *a, const struct hfi_owner_key *b)
{
    return a->kind == b->kind && a->number == b->number && strcmp(a->text, b->text) == 0;
}

static const char *note_of(const struct hfi_hold *hold)
{
    return hfi_hold_name(hold) + hold->name_length + 1;
}

struct hfi_owner_key hfi_hold_key(const struct hfi_hold *hold)
{
    return (struct hfi_owner_key){ hold->kind, hold->key_number, note_of(hold) + hold->note_length + 1 };
}

static bool same_owner(const struct hfi_hold *hold, const struct hfi_owner_key *key)
{
    return hold->kind == key->kind && hold->key_number == key->number &&
           strcmp(hfi_hold_key(hold).text, key->text) == 0;
}

struct hfi_hold *hfi_hold_find(hf_client *client, const struct hfi_want *want)
{
    if (client->bucket_count == 0)
        return NULL;
    struct hfi_hold *hold = *bucket(client, want->name_hash);
    while (hold && (hold->name_hash != want->name_hash || !same_owner(hold, &want->key) ||
                    strcmp(hfi_hold_name(hold), want->name) != 0))
        hold = hold->next_in_bucket;
    return hold;
}

struct hfi_hold *hfi_hold_of_name(hf_client *client, uint32_t name_hash, const char *name)
{
    struct hfi_hold *hold = client->bucket_count ? *bucket(client, name_hash) : NULL;
    while (hold && (hold->name_hash != name_hash || strcmp(hfi_hold_name(hold), name) != 0))
        hold = hold->next_in_bucket;
    return hold;
}

bool hfi_hold_set_owner(struct hfi_hold *hold, const struct hfi_owner_key *key, uint64_t own)
{
    const size_t at = hold->name_length + hold->note_length + 2u, size = strlen(key->text) + 1;
    if (at + size > hold->text_room * (size_t)HFI_TEXT_UNIT)
        return false;
    memcpy((char *)hold->engine_lock + hold->client->engine->lock_size + at, key->text, size);
    hold->kind = (uint8_t)key->kind;
    hold->key_number = key->number;
    if (hold->kind == HF_OWNER_HANDLE && hold->key_number == 0)
        hold->key_number = own; /* an owner of its own, which its handles can show */
    return true;
}

void hfi_hold_forget(struct hfi_hold *hold)
{
    struct hfi_hold **link = bucket(hold->client, hold->name_hash);
    while (*link && *link != hold)
        link = &(*link)->next_in_bucket;
    if (*link)
        *link = hold->next_in_bucket;
    if (hold->client->turns)
        hfi_line_call_first(hold->client, hold->name_hash, hfi_hold_name(hold));
}

static struct hfi_hold **serial_bucket(const hf_client *client, uint64_t serial)
{
    return &client->serials[serial & (client->bucket_count - 1)];
}

struct hfi_hold *hfi_hold_of_serial(const hf_client *client, uint64_t serial)
{
    struct hfi_hold *hold = client->bucket_count ? *serial_bucket(client, serial) : NULL;
    while (hold && hold->serial != serial)
        hold = hold->next_by_serial;
    return hold;
}

static void forget_serial(struct hfi_hold *hold)
{
    struct hfi_hold **link = serial_bucket(hold->client, hold->serial);
    while (*link != hold)
        link = &(*link)->next_by_serial;
    *link = hold->next_by_serial;
}

static void remember_name(struct hfi_hold *hold)
{
    struct hfi_hold **place = bucket(hold->client, hold->name_hash);
    hold->next_in_bucket = *place;
    *place = hold;
}

static void remember_serial(struct hfi_hold *hold)
{
    struct hfi_hold **place = serial_bucket(hold->client, hold->serial);
    hold->next_by_serial = *place;
    *place = hold;
}

struct hfi_hold *hfi_hold_after(const hf_client *client, const struct hfi_hold *hold)
{
    size_t i = hold ? (hold->serial & (client->bucket_count - 1)) + 1 : 0;
    struct hfi_hold *next = hold ? hold->next_by_serial : NULL;
    while (!next && i < client->bucket_count)
        next = client->serials[i++];
    return next;
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
    struct hfi_hold **old = client->buckets, **old_serials = client->serials;
    const size_t old_count = client->bucket_count;
    client->buckets = larger;
    client->serials = serials;
    client->bucket_count = more;
    for (size_t i = 0; i < old_count; i++) {
        for (struct hfi_hold *hold = old[i], *next; hold; hold = next) {
            next = hold->next_in_bucket;
            remember_name(hold);
        }
        for (struct hfi_hold *hold = old_serials[i], *next; hold; hold = next) {
            next = hold->next_by_serial;
            remember_serial(hold);
        }
    }
    hfi_free(old);
    hfi_free(old_serials);
    return true;
}

/* --- when what is due --- */

void hfi_hold_set_timer(struct hfi_hold *hold, enum hfi_due due, hfi_time at_ns)
{
    struct hfi_timers *timers = hold->client->timers;
    if (hold->timer.at_ns && hold->due != due)
        hfi_timers_set(&timers[hold->due], &hold->timer, HFI_NEVER);
    hold->due = (uint8_t)due;
    if (hold->timer.at_ns != (at_ns == HFI_NEVER ? 0 : at_ns))
        hfi_timers_set(&timers[due], &hold->timer, at_ns);
}

void hfi_hold_schedule(struct hfi_hold *hold)
{
    const struct hfi_lease *lease = &hold->lease;
    const hfi_time end = hold->lost ? HFI_AT_ONCE : lease->deadline_ns;
    const hfi_time renewal = hold->renewing ? HFI_NEVER : hold->doubted ? HFI_AT_ONCE : lease->renew_at_ns;
    enum hfi_due due = HFI_DUE_END;
    hfi_time at = end;
    if (hold->state != HFI_HOLD_HELD) {
        due = HFI_DUE_UNDO;
        at = hold->undoing && !hold->pins ? lease->renew_at_ns : HFI_NEVER;
    } else if (hold->overdue) {
        due = HFI_DUE_OVERDUE;
        at = end < HFI_NEVER ? end : HFI_NEVER - 1; /* also one that has none: it must be found */
    } else if (renewal < end) {
        due = HFI_DUE_RENEWAL;
        at = renewal;
    }
    hfi_hold_set_timer(hold, due, at);
}

struct hfi_hold *hfi_hold_first(const hf_client *client, enum hfi_due due)
{
    struct hfi_timer *timer = hfi_timers_first(&client->timers[due]);
    return timer ? HFI_TIMER_OF(struct hfi_hold, timer, timer) : NULL;
}

void hfi_hold_unpin(struct hfi_hold *hold)
{
    hold->pins--;
    if (!hold->undoing || hold->pins)
        return;
    hfi_hold_schedule(hold);
    hfi_keeper_expect(hold->client, hold->lease.renew_at_ns);
}

/* --- what few of them need --- */

static void drop_text(struct hfi_text **text)
{
    if (*text && --(*text)->references == 0)
        hfi_free(*text);
    *text = NULL;
}

void hfi_text_set(struct hfi_text **text, struct hfi_text **last, const char *sentence)
{
    drop_text(text);
    if (!*last || strcmp((*last)->text, sentence) != 0) {
        const size_t size = strlen(sentence) + 1;
        drop_text(last);
        *last = hfi_alloc(sizeof **last + size);
        if (!*last)
            return;
        memcpy((*last)->text, sentence, size);
        (*last)->references = 1;
    }
    *text = *last;
    (*text)->references++;
}

struct hfi_extra *hfi_hold_extra(struct hfi_hold *hold)
{
    if (!hold->extra) {
        hold->extra = hfi_alloc(sizeof *hold->extra);
        if (hold->extra)
            hold->extra->lost_fd = -1;
    }
    return hold->extra;
}

static void free_extra(struct hfi_extra *extra)
{
    if (!extra)
        return;
    hfi_fd_close(extra->lost_fd);
    drop_text(&extra->why);
    drop_text(&extra->trouble_text);
    hfi_free(extra);
}

/* --- birth and death --- */

/* The room for texts of so many bytes behind so many others: all that malloc() has to give, which is 8 bytes more than
 * a multiple of 16. */
static size_t text_units(size_t before, size_t text_size)
{
    const size_t all = (before + text_size + 7) / 16 * 16 + 8;
    return (all - before + HFI_TEXT_UNIT - 1) / HFI_TEXT_UNIT; /* an engine's lock may be of any size */
}

/* A spare one, if it has room for texts of so many bytes; else a new one. */
static struct hfi_hold *get_memory(hf_client *client, size_t text_size)
{
    struct hfi_hold *hold = client->free_holds;
    const size_t lock_size = client->engine->lock_size;
    const size_t units = text_units(sizeof *hold + lock_size, text_size);
    if (hold)
        client->free_holds = hold->next_in_bucket;
    if (hold && hold->text_room < units) { /* those that come may have names as long as this one's */
        hfi_free(hold);
        hold = NULL;
    }
    const size_t room = hold ? hold->text_room : units;
    if (hold)
        memset(hold, 0, sizeof *hold + lock_size);
    else
        hold = hfi_alloc(sizeof *hold + lock_size + room * HFI_TEXT_UNIT);
    if (hold)
        hold->text_room = (uint8_t)room;
    return hold;
}

static struct hfi_hold *make_hold(hf_client *client, const struct hfi_want *want)
{
    const char *note = want->options.note ? want->options.note : "";
    const size_t name_length = strlen(want->name), note_length = strlen(note), owner_length = strlen(want->key.text);
    struct hfi_hold *hold = get_memory(client, name_length + note_length + owner_length + 3);
    if (!hold)
        return NULL;
    hold->client = client;
    char *text = (char *)hold->engine_lock + client->engine->lock_size;
    memcpy(text, want->name, name_length + 1);
    memcpy(text + name_length + 1, note, note_length + 1);
    hold->name_length = (uint8_t)name_length;
    hold->note_length = (uint8_t)note_length;
    hold->serial = ++client->serial;
    hfi_hold_set_owner(hold, &want->key, hold->serial);
    return hold;
}

static void put_back(hf_client *client, struct hfi_hold *hold)
{
    free_extra(hold->extra);
    if (client->hold_count < SPARE_HOLDS) {
        hold->next_in_bucket = client->free_holds;
        client->free_holds = hold;
    } else {
        hfi_free(hold);
    }
}

struct hfi_hold *hfi_hold_new(hf_client *client, const struct hfi_want *want)
{
    struct hfi_hold *hold = grow_buckets(client) ? make_hold(client, want) : NULL;
    if (!hold)
        return NULL;
    if (want->options.once_per_ms) {
        if (!hfi_hold_extra(hold)) {
            put_back(client, hold);
            return NULL;
        }
        hold->extra->once_ms = want->options.once_per_ms;
        hold->once = true;
    }
    hold->name_hash = want->name_hash;
    remember_name(hold);
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
    client->hold_count--;
    client->references--;
    put_back(client, hold);
}

/* --- loss --- */

void hfi_hold_publish(struct hfi_hold *hold)
{
    atomic_store(&hold->safe_until_ns, hold->lease.deadline_ns);
}

void hfi_hold_mark_lost(struct hfi_hold *hold, const char *why)
{
    if (why == hfi_hold_why(hold))
        return;
    struct hfi_extra *extra = hfi_hold_extra(hold);
    hold->lost = true;
    if (extra)
        hfi_text_set(&extra->why, &hold->client->last_why, why);
}

const char *hfi_hold_why(const struct hfi_hold *hold)
{
    if (!hold->lost)
        return "";
    return hold->extra && hold->extra->why ? hold->extra->why->text
                                           : "it was lost, and there was no memory to keep the reason in";
}

void hfi_hold_lose(struct hfi_hold *hold, const char *why)
{
    hold->state = HFI_HOLD_ENDED;
    hfi_hold_forget(hold);
    atomic_store(&hold->safe_until_ns, 0);
    hfi_hold_mark_lost(hold, why);
    hfi_hold_schedule(hold);
    if (hold->extra && hold->extra->lost_fd >= 0)
        hfi_bell_ring(hold->extra->lost_fd);
}

void hfi_hold_lose_in_store(struct hfi_hold *hold, const char *why)
{
    hfi_hold_lose(hold, *why ? why : "the store no longer has it: it was broken, or ended or forgotten there");
}

/* Why the store was of no help when the time was over. */
static void explain_silence(const struct hfi_hold *hold, char *why, size_t size)
{
    static const struct hfi_extra none;
    const struct hfi_extra *extra = hold->extra ? hold->extra : &none;
    const bool waits = hold->renewing; /* for an answer, at this moment */
    const hfi_time since = extra->trouble_since_ns ? extra->trouble_since_ns : hold->asked_ns;
    const bool refused = extra->trouble_since_ns && extra->trouble != HF_UNAVAILABLE && extra->trouble != HF_UNKNOWN;

    if (!waits && !extra->trouble_since_ns) {
        snprintf(why, size, "it was not renewed in time: this process did not run, or waited for the store");
        return;
    }
    const double seconds = (double)(hfi_now_ns() - since) / HFI_SECOND;
    const bool known = extra->trouble_since_ns && extra->trouble_text && extra->trouble_text->text[0];
    snprintf(why, size, "the store has %s for %.1f s (%.159s)", refused ? "refused to renew it" : "been silent",
             seconds, known ? extra->trouble_text->text : "no answer");
}

void hfi_hold_lose_by_time(struct hfi_hold *hold)
{
    char why[sizeof((hf_error *)0)->message];
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

void hfi_handle_tell(hf_lock *handle)
{
    struct hfi_hold *hold = handle->hold;
    hf_client *client = hold->client;
    struct hfi_telling telling = { client->tellings, hold, handle, hfi_thread_number() };
    if (handle->told || !handle->on_lost)
        return;
    handle->told = true;
    if (handle->on_lost == hfi_event_lost) {
        hfi_event_lost(handle, "", handle->arg);
        return;
    }
    client->tellings = &telling;
    hold->pins++;
    const char *why = hfi_hold_why(hold);
    pthread_mutex_unlock(&client->mutex);
    handle->on_lost(handle, why, handle->arg);
    pthread_mutex_lock(&client->mutex);
    struct hfi_telling **link = &client->tellings;
    while (*link != &telling)
        link = &(*link)->next;
    *link = telling.next;
    pthread_cond_broadcast(&client->changed); /* hf_release() waits for a callback to return before it frees */
    hfi_hold_unpin(hold);
}

void hfi_hold_tell(struct hfi_hold *hold)
{
    hf_lock *handle;
    hold->pins++;
    while ((handle = next_to_tell(hold)) != NULL)
        hfi_handle_tell(handle);
    hfi_hold_unpin(hold);
}

/* --- handles --- */

hf_lock *hfi_handle_new(struct hfi_hold *hold)
{
    hf_client *client = hold->client;
    hf_lock *handle = client->free_locks;
    if (!hold->handle.hold)
        return &hold->handle;
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
    const bool first = handle == &handle->hold->handle;
    handle->hold = NULL;
    if (first)
        return;
    handle->next = client->free_locks;
    client->free_locks = handle;
}

hf_status hfi_hold_enter(hf_lock **out, struct hfi_hold *hold, const struct hfi_want *want, hf_error *err)
{
    hf_lock *handle = hfi_handle_new(hold);
    if (!handle)
        return hfi_fail(err, HF_NOMEM, 0, "no memory for a lock");
    hfi_handle_attach(handle, hold, &want->options);
    *out = handle;
    return HF_OK;
}

/* For how long its work, which is done, counts as done from now on. */
static uint64_t done_ms(const struct hfi_hold *hold)
{
    const struct hfi_extra *extra = hold->extra;
    const uint64_t since_ms = (uint64_t)((hfi_now_ns() - extra->granted_ns) / HFI_MS);
    return since_ms < extra->once_ms ? extra->once_ms - since_ms : 0;
}

struct hfi_request hfi_hold_request(const struct hfi_hold *hold, hfi_time deadline_ns)
{
    return (struct hfi_request){ .name = hfi_hold_name(hold),
                                 .owner = hfi_hold_owner(hold),
                                 .ttl_ms = hold->lease.terms.ttl_ms,
                                 .deadline_ns = deadline_ns,
                                 .note = note_of(hold),
                                 .once = hold->once,
                                 .done_ms = hold->done && hold->once ? done_ms(hold) : 0 };
}
