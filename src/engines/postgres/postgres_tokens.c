/* SPDX-License-Identifier: MIT
 *
 * postgres_tokens.c: how tokens of advisory locks grow though a grant need not wait for the disk.
 *
 * A grant writes the token into the row of its name, and a crash of the server may undo that. So there are two marks,
 * in rows whose name is empty, as no lock's is:
 *
 *     the ceiling  in the table of grants, on the disk before anybody goes by it
 *     the floor    in the table of waiters, which is unlogged: it is there until a crash, or a failover, and no longer.
 *                  Whoever finds it missing puts it where the ceiling is
 *
 * Each token is above its name's last one, above the floor, and not below the server's microseconds. A grant whose
 * token is above the ceiling waits for the disk, as all did before. One that is not need not: what a crash can make
 * forgotten so is not above the ceiling, and all that comes after the crash is. Who takes locks again and again has the
 * ceiling raised every few seconds by one of its grants, which waits; who does not has nothing to gain. If somebody
 * else has the ceiling locked, the grant is one that waits, and no more.
 *
 * Should somebody delete the ceiling, it is made anew where it can have been at most, by the next one who raises it or
 * needs it for a floor: it is raised to a little above the last token that whoever does so was given, which is in the
 * same table, and on the disk with it.
 *
 * Should the table of waiters have been made to last, the floor says nothing of a crash: who finds it so when it opens,
 * or when it looks at the tables again, has all its grants wait for the disk.
 *
 * A ceiling that was raised in an earlier run of the same server does no harm: the floor is not below it. One of
 * another server, which may not have it on its disk, is forgotten.
 */
#include "postgres.h"
#include <string.h>

/* The ceiling is raised to fifteen seconds above the last token, and so ten ahead of the time; only by who was granted
 * something a while ago, and so may be again. */
#define RAISE_PAUSE (9 * HFI_SECOND)
#define A_WHILE (5 * HFI_SECOND)

hf_status hfi_postgres_make_floor(struct postgres_store *store, struct postgres_connection *connection,
                                  hfi_time deadline_ns, hf_error *err)
{
    struct postgres_call call = { .statement = POSTGRES_FLOOR };
    const hf_status status = hfi_postgres_exchange(store, connection, &call, 1, deadline_ns, err);
    PQclear(call.result);
    return status;
}

void hfi_postgres_trust_floor(struct postgres_store *store, bool trust)
{
    pthread_mutex_lock(&store->mutex);
    store->tokens.floor_lasts = !trust;
    pthread_mutex_unlock(&store->mutex);
}

/* With the mutex. */
static bool is_same_server(const struct postgres_store *store, const struct postgres_connection *connection)
{
    return strcmp(store->tokens.started, connection->started) == 0;
}

/* Whether this grant is to raise the ceiling: it then waits for the disk itself. */
static bool begin(struct postgres_store *store, const struct postgres_connection *connection,
                  struct postgres_values *values, hfi_time now)
{
    struct postgres_tokens *tokens = &store->tokens;
    pthread_mutex_lock(&store->mutex);
    const bool known = is_same_server(store, connection) && !tokens->floor_lasts;
    const bool fresh = now - tokens->raised_ns < RAISE_PAUSE && tokens->last <= tokens->ceiling;
    const bool raises = known && !fresh && !tokens->raising && now - tokens->granted_ns < A_WHILE;
    tokens->raising |= raises;
    hfi_postgres_put(values->ceiling, known && !raises ? tokens->ceiling : 0);
    hfi_postgres_put(values->version, tokens->last);
    pthread_mutex_unlock(&store->mutex);
    return raises;
}

/* 0: no ceiling was raised, or no token was drawn. */
static void end(struct postgres_store *store, const struct postgres_connection *connection, bool raises,
                int64_t ceiling, int64_t token, hfi_time asked_ns)
{
    struct postgres_tokens *tokens = &store->tokens;
    pthread_mutex_lock(&store->mutex);
    if (raises)
        tokens->raising = false;
    if (token > 0 && !is_same_server(store, connection)) {
        *tokens = (struct postgres_tokens){ .raising = tokens->raising, .floor_lasts = tokens->floor_lasts };
        memcpy(tokens->started, connection->started, sizeof tokens->started);
    }
    if (ceiling > tokens->ceiling && is_same_server(store, connection)) {
        tokens->ceiling = ceiling;
        tokens->raised_ns = asked_ns;
    }
    if (token > 0) {
        tokens->last = token > tokens->last ? token : tokens->last;
        tokens->granted_ns = asked_ns;
    }
    pthread_mutex_unlock(&store->mutex);
}

hf_status hfi_postgres_exchange_grant(struct postgres_store *store, struct postgres_connection *connection,
                                      struct postgres_call *calls, size_t count, struct postgres_values *values,
                                      hfi_time deadline_ns, hf_error *err)
{
    int64_t ceiling = 0, token = 0;
    const hfi_time asked_ns = store->env->now_ns();
    const bool raises = begin(store, connection, values, asked_ns);
    calls[0] = (struct postgres_call){ .statement = POSTGRES_CEILING, .values = values };
    const hf_status status = hfi_postgres_exchange(store, connection, raises ? calls : calls + 1,
                                                   raises ? count : count - 1, deadline_ns, err);
    if (status == HF_OK) {
        ceiling = hfi_postgres_number(calls[0].result, 0, 0, 0);
        token = hfi_postgres_number(calls[1].result, 0, 0, 0);
    }
    end(store, connection, raises, ceiling, token, asked_ns);
    return status;
}
