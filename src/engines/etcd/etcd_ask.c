/* SPDX-License-Identifier: MIT
 *
 * etcd_ask.c: one exchange with whichever server answers: the one that did so last, and when it is dead, silent or cut
 * off from the cluster, the next.
 */
#include "etcd_wire.h"
#include <string.h>

/* With at least so much time left, half of it is kept for the next server. */
#define ENOUGH_FOR_TWO HFI_SECOND

/* --- one server --- */

void hfi_etcd_answers_free(struct etcd_question *question)
{
    for (size_t i = 0; i < question->count; i++) {
        struct etcd_call *call = &question->calls[i];
        hfi_etcd_stream_free(&call->stream);
        protobuf_c_message_free_unpacked(call->answer, NULL);
        call->answer = NULL;
    }
}

/* Unpacks the answers of calls that went well; the status of the first that did not. */
static hf_status take_answers(struct etcd_question *question, hf_error *err)
{
    for (size_t i = 0; i < question->count; i++) {
        struct etcd_call *call = &question->calls[i];
        if (call->optional && call->stream.code > 0)
            continue;
        const hf_status status = hfi_etcd_outcome(&call->stream, question->writes, err);
        if (status != HF_OK)
            return status;
        if (!hfi_etcd_take_message(&call->stream, call->type, &call->answer) || !call->answer)
            return hfi_fail(err, HF_INTERNAL, 0, "the server answered in a way that makes no sense");
    }
    return HF_OK;
}

/* Of a call that changes nothing, an answer that did not come leaves nothing unknown. */
static hf_status nothing_unknown(hf_status status, hf_error *err)
{
    if (status != HF_UNKNOWN)
        return status;
    if (err)
        err->status = HF_UNAVAILABLE;
    return HF_UNAVAILABLE;
}

static hf_status exchange(struct etcd_store *store, struct etcd_node *node, struct etcd_question *question,
                          const char *token, hfi_time deadline_ns, hf_error *err)
{
    for (size_t i = 0; i < question->count; i++) {
        struct etcd_call *call = &question->calls[i];
        call->stream.path = call->path;
        if (!hfi_etcd_add_message(&call->stream, call->request))
            return hfi_fail(err, HF_NOMEM, 0, "no memory for a request");
    }
    hf_status status = hfi_etcd_wire_ask(store, node, question, token, deadline_ns, err);
    if (!question->writes)
        status = nothing_unknown(status, err);
    return status == HF_OK ? take_answers(question, err) : status;
}

/* --- the log-in --- */

static hf_status log_in(struct etcd_store *store, struct etcd_node *node, bool renews, hfi_time deadline_ns,
                        hf_error *err)
{
    struct etcd_call call = { .path = NULL };
    struct etcd_question question = { .calls = &call, .count = 1, .renews = renews };
    hf_status status = hfi_etcd_login_prepare(store, &call.stream)
                           ? hfi_etcd_wire_ask(store, node, &question, NULL, deadline_ns, err)
                           : hfi_fail(err, HF_NOMEM, 0, "no memory for a request");
    status = nothing_unknown(status, err);
    if (status == HF_OK) {
        pthread_mutex_lock(&store->mutex);
        const bool logged_in = hfi_etcd_login_take(store, &call.stream);
        pthread_mutex_unlock(&store->mutex);
        if (!logged_in)
            status = hfi_etcd_outcome(&call.stream, false, err);
        if (!logged_in && status == HF_OK)
            status = hfi_fail(err, HF_INTERNAL, 0, "the server answered in a way that makes no sense");
    }
    hfi_etcd_stream_free(&call.stream);
    return status;
}

/* The token to send along, or NULL; freed by hfi_free(). */
static char *copy_token(struct etcd_store *store, uint64_t *login)
{
    pthread_mutex_lock(&store->mutex);
    const char *token = hfi_etcd_token(store);
    char *copy = token ? hfi_strdup(token) : NULL;
    *login = store->logins;
    pthread_mutex_unlock(&store->mutex);
    return copy;
}

static bool needs_login(struct etcd_store *store)
{
    pthread_mutex_lock(&store->mutex);
    const bool needs = hfi_etcd_needs_login(store);
    pthread_mutex_unlock(&store->mutex);
    return needs;
}

static void forget_login(struct etcd_store *store, uint64_t login)
{
    pthread_mutex_lock(&store->mutex);
    hfi_etcd_login_refused(store, login);
    pthread_mutex_unlock(&store->mutex);
}

/* --- whichever server --- */

static hf_status ask_node(struct etcd_store *store, struct etcd_node *node, struct etcd_question *question,
                          hfi_time deadline_ns, hf_error *err)
{
    hf_status status = HF_OK;
    if (needs_login(store))
        status = log_in(store, node, question->renews, deadline_ns, err);
    if (status == HF_OK) {
        char *token = copy_token(store, &question->login);
        status = exchange(store, node, question, token, deadline_ns, err);
        hfi_free(token);
    }
    return status;
}

static struct etcd_node *current_node(struct etcd_store *store, size_t *index)
{
    pthread_mutex_lock(&store->mutex);
    *index = store->current;
    pthread_mutex_unlock(&store->mutex);
    return &store->nodes[*index];
}

static void note_outcome(struct etcd_store *store, size_t index, bool answered)
{
    pthread_mutex_lock(&store->mutex);
    store->answers = answered;
    if (!answered && store->current == index)
        store->current = (index + 1) % store->config.address_count;
    pthread_mutex_unlock(&store->mutex);
}

static bool is_any(const struct etcd_question *question, bool (*is)(const struct etcd_stream *stream))
{
    for (size_t i = 0; i < question->count; i++) {
        if (is(&question->calls[i].stream))
            return true;
    }
    return false;
}

static hf_status give_up(const struct etcd_question *question, hf_status status, hf_error *err)
{
    if (status == HF_UNAVAILABLE && question->unsure) {
        status = HF_UNKNOWN; /* what went to a server before the last one may have been done */
        if (err)
            err->status = status;
    }
    return status;
}

hf_status hfi_etcd_ask_server(struct etcd_store *store, size_t index, struct etcd_question *question, hf_error *err)
{
    const hf_status status = ask_node(store, &store->nodes[index], question, question->deadline_ns, err);
    if (status != HF_OK)
        hfi_etcd_answers_free(question);
    return status;
}

hf_status hfi_etcd_ask(struct etcd_store *store, struct etcd_question *question, hf_error *err)
{
    const hfi_time begun = store->env->now_ns();
    hfi_time deadline = question->deadline_ns;
    bool logged_in_again = false;
    if (store->config.timeout_ns && begun + store->config.timeout_ns < deadline)
        deadline = begun + store->config.timeout_ns;
    for (size_t tries = 0;;) {
        size_t index;
        struct etcd_node *node = current_node(store, &index);
        const hfi_time left = deadline - store->env->now_ns();
        const bool last = tries + 1 >= store->config.address_count;
        const hfi_time until = last || left < ENOUGH_FOR_TWO ? deadline : deadline - left / 2;
        const hf_status status = ask_node(store, node, question, until, err);
        if (status == HF_OK) {
            note_outcome(store, index, true);
            return HF_OK;
        }
        question->unsure = question->unsure || status == HF_UNKNOWN;
        question->lease_missing = is_any(question, hfi_etcd_is_lease_missing);
        question->lease_there = is_any(question, hfi_etcd_is_lease_there);
        question->too_many = is_any(question, hfi_etcd_is_too_many);
        question->full = is_any(question, hfi_etcd_is_full);
        const bool refused = *store->config.user && is_any(question, hfi_etcd_is_stale_token);
        hfi_etcd_answers_free(question);
        if (refused && !logged_in_again) {
            logged_in_again = true;
            forget_login(store, question->login);
            continue;
        }
        if (question->lease_missing || (status != HF_UNAVAILABLE && status != HF_UNKNOWN))
            return give_up(question, status, err); /* that was an answer, and no other server has a better one */
        note_outcome(store, index, false);
        if (last || store->env->now_ns() >= deadline)
            return give_up(question, status, err);
        tries++;
    }
}
