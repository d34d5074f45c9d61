/* SPDX-License-Identifier: MIT
 *
 * main.c: the conformance suite. `conformance URL [SUBSTRING…] [--but SUBSTRING…]` tries the twelve promises on the
 * store that URL names; `conformance --list` says what there is. Of those the store's capabilities select the tests;
 * there is no other way to skip one. HOLDFAST_TEST_SEED repeats a run, HOLDFAST_TEST_SLOW=N gives it N times the time.
 */
#include "conformance.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

extern uint32_t run_tag;
extern uint64_t run_seed;

const char *store_url;
uint32_t store_caps;
uint32_t run_tag;  /* in the names of this run's locks */
uint64_t run_seed; /* of random_below() */

static const struct {
    uint32_t bit;
    const char *name;
} cap_names[] = {
    { HF_CAP_EXPIRY, "HF_CAP_EXPIRY" },       { HF_CAP_BOUND, "HF_CAP_BOUND" },
    { HF_CAP_FAIR, "HF_CAP_FAIR" },           { HF_CAP_WAKE_ONE, "HF_CAP_WAKE_ONE" },
    { HF_CAP_PROCESSES, "HF_CAP_PROCESSES" }, { HF_CAP_MACHINES, "HF_CAP_MACHINES" },
    { HF_CAP_INSPECT, "HF_CAP_INSPECT" },     { HF_CAP_DURABLE_TOKEN, "HF_CAP_DURABLE_TOKEN" },
    { HF_CAP_BREAK, "HF_CAP_BREAK" },         { HF_CAP_GUARD, "HF_CAP_GUARD" },
    { HF_CAP_ONCE, "HF_CAP_ONCE" },           { CAN_FORK_BUSY, "a build without sanitizers" },
    { PARKS, "waits without threads" },
};

/* Unless the lock is bound to a connection, on which each wait for it must listen. */
static bool store_parks(void)
{
    static const char *const schemes[] = { "redis", "postgres", "etcd" };
    bool parks = false;
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
        parks = parks || strncmp(store_url, schemes[i], strlen(schemes[i])) == 0;
    return (parks && !(store_caps & HF_CAP_BOUND)) || strncmp(store_url, "mem:", 4) == 0;
}

static bool select_by_capabilities(const struct test *test, char *reason, size_t size)
{
    const uint32_t can = store_caps | (TEST_SANITIZED ? 0 : CAN_FORK_BUSY) | (store_parks() ? PARKS : 0);
    uint32_t missing = test->needs & ~can;
    uint32_t excess = test->lacks & store_caps;
    size_t used = 0;
    for (size_t i = 0; i < sizeof cap_names / sizeof *cap_names && used < size; i++) {
        if (missing & cap_names[i].bit)
            used += (size_t)snprintf(reason + used, size - used, "%sneeds %s", used ? ", " : "", cap_names[i].name);
        else if (excess & cap_names[i].bit)
            used += (size_t)snprintf(reason + used, size - used, "%sfor stores without %s", used ? ", " : "",
                                     cap_names[i].name);
    }
    return !missing && !excess;
}

/* In a process of its own, so that the runner, which forks, never has threads. */
static bool ask_capabilities(void)
{
    uint32_t *caps = mmap(NULL, sizeof *caps, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (caps == MAP_FAILED)
        return false;
    pid_t asker = fork();
    if (asker == 0) {
        hf_client *client = NULL;
        hf_error err = { 0 };
        hf_status status = hf_open(&client, store_url, NULL, &err);
        if (status == HF_OK)
            *caps = hf_capabilities(client);
        else
            fprintf(stderr, "conformance: %s: %s\n", hf_status_name(status), err.message);
        hf_close(client);
        exit(status == HF_OK ? 0 : 1);
    }
    int status = 1;
    bool answered = asker > 0 && waitpid(asker, &status, 0) == asker && status == 0;
    store_caps = *caps;
    munmap(caps, sizeof *caps);
    return answered;
}

int main(int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[1], "--list") == 0)
        return test_run(argc - 1, argv + 1, NULL);
    if (argc < 2 || argv[1][0] == '-') {
        fprintf(stderr, "usage: conformance URL [SUBSTRING...] [--but SUBSTRING...]\n"
                        "       conformance --list [SUBSTRING...] [--but SUBSTRING...]\n");
        return 64;
    }
    store_url = argv[1];
    const char *seed = getenv("HOLDFAST_TEST_SEED");
    if (getrandom(&run_tag, sizeof run_tag, 0) != sizeof run_tag)
        return 1;
    run_seed = seed ? strtoull(seed, NULL, 10) : run_tag;
    if (!ask_capabilities())
        return 1;
    printf("# seed %" PRIu64 "\n", run_seed);
    return test_run(argc - 2, argv + 2, select_by_capabilities);
}
