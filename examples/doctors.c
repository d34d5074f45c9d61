/* SPDX-License-Identifier: MIT
 *
 * doctors.c: two doctors are on call and both want to go home. The rule: one of them has to stay.
 *
 *     cc doctors.c -lholdfast -pthread -o doctors && ./doctors [URL]
 *
 * Each looks at the rota, sees that the other one is there, and crosses out their own name. They write to different
 * lines, so no write collides with another, and still the rule is broken: what one has read is no longer true when it
 * acts. The cure is one lock around all of it: read, check and write. Exits 0 if both leave without the lock and one
 * stays with it.
 */
#include <holdfast.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

struct hospital {
    atomic_bool on_call[2]; /* the rota; atomic, and that alone does not help */
    hf_client *client;      /* NULL: nobody asks for a lock */
    pthread_barrier_t both_looked;
};

struct doctor {
    struct hospital *hospital;
    int number;
    bool failed;
};

static const char *const names[2] = { "Alice", "Bob" };

/* The critical section: the check and the write that depends on it. */
static void go_home_if_allowed(struct doctor *doctor)
{
    struct hospital *hospital = doctor->hospital;
    bool other_is_there = atomic_load(&hospital->on_call[1 - doctor->number]);

    /* Bad luck made reliable: without a lock, both have looked before either acts. With it the second doctor does not
     * get as far as here, so there we only leave time for it: a lock that let both in would be found out. */
    if (!hospital->client)
        pthread_barrier_wait(&hospital->both_looked);
    else
        usleep(20000);
    if (other_is_there)
        atomic_store(&hospital->on_call[doctor->number], false);
    printf("  %-5s sees that the other one is %s, and %s\n", names[doctor->number], other_is_there ? "there" : "gone",
           other_is_there ? "leaves" : "stays");
}

static void *end_of_shift(void *arg)
{
    struct doctor *doctor = arg;
    hf_options options = HF_OPTIONS_INIT;
    hf_lock *lock;
    hf_error err;

    if (!doctor->hospital->client) {
        go_home_if_allowed(doctor);
        return NULL;
    }
    /* One lock for the whole rota, not one for each doctor: the rule is about both lines. The threads share a client;
     * each thread is an owner of its own unless told otherwise. */
    options.wait_ms = 20000;
    options.note = names[doctor->number];
    if (hf_acquire(&lock, doctor->hospital->client, "rota", &options, &err) != HF_OK) {
        fprintf(stderr, "doctors: %s\n", err.message);
        doctor->failed = true;
        return NULL;
    }
    printf("  %-5s has the rota, token %" PRIu64 "\n", names[doctor->number], hf_token(lock));
    go_home_if_allowed(doctor);
    if (hf_release(lock, &err) != HF_OK) {
        fprintf(stderr, "doctors: %s\n", err.message);
        doctor->failed = true;
    }
    return NULL;
}

/* How many are on call afterwards; -1 if something failed. */
static int one_evening(hf_client *client)
{
    struct hospital hospital = { .on_call = { true, true }, .client = client };
    struct doctor doctors[2] = { { &hospital, 0, false }, { &hospital, 1, false } };
    pthread_t threads[2];

    pthread_barrier_init(&hospital.both_looked, NULL, 2);
    for (int i = 0; i < 2; i++) {
        if (pthread_create(&threads[i], NULL, end_of_shift, &doctors[i]) != 0) {
            fprintf(stderr, "doctors: no thread for %s\n", names[i]);
            _exit(1); /* the other one may be waiting at the barrier */
        }
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&hospital.both_looked);
    if (doctors[0].failed || doctors[1].failed)
        return -1;
    return hospital.on_call[0] + hospital.on_call[1];
}

int main(int argc, char **argv)
{
    const char *url = argc > 1 ? argv[1] : "file:";
    hf_client *client;
    hf_error err;
    int without, with;

    if (hf_open(&client, url, NULL, &err) != HF_OK) {
        fprintf(stderr, "doctors: %s\n", err.message);
        return 1;
    }
    printf("without a lock:\n");
    without = one_evening(NULL);
    printf("  on call tonight: %d\n", without);
    printf("with a lock around read, check and write:\n");
    with = one_evening(client);
    printf("  on call tonight: %d\n", with);
    hf_close(client);
    return without == 0 && with == 1 ? 0 : 1;
}
