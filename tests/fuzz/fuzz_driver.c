/* SPDX-License-Identifier: MIT
 *
 * fuzz_driver.c: runs a fuzz target without libFuzzer: first every file of a corpus, then changed ones, for
 * FUZZ_SECONDS (3 unless set) or at most FUZZ_RUNS inputs, from FUZZ_SEED (the clock unless set), which is printed.
 *
 *     PROGRAM CORPUS-DIRECTORY
 *     PROGRAM FILE          one input, as it was kept after a failure
 *
 * An input that crashes, fails a check or does not end is kept as fuzz-failure.bin in the current directory.
 */
#include "fuzz.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define INPUT_MOST 4096
#define CORPUS_MOST 200
#define STUCK_AFTER_S 20

struct input {
    uint8_t bytes[INPUT_MOST];
    size_t size;
};

static struct input corpus[CORPUS_MOST];
static size_t corpus_count;
static struct input current;
static uint64_t state;

/* SplitMix64: any seed will do, 0 too. */
static uint64_t random_number(void)
{
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static size_t below(size_t most)
{
    return most ? (size_t)(random_number() % most) : 0;
}

/* --- failures --- */

static void keep_current(void)
{
    const int fd = open("fuzz-failure.bin", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, current.bytes, current.size) != (ssize_t)current.size)
        return;
    close(fd);
    static const char words[] = "the input was kept as fuzz-failure.bin\n";
    const ssize_t said = write(STDERR_FILENO, words, sizeof words - 1);
    (void)said;
}

static void die(int number)
{
    keep_current();
    signal(number, SIG_DFL);
    raise(number);
}

/* Sanitizers end the process without a signal. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void watch_for_failures(void)
{
    static const int numbers[] = { SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (i == 0 || !__sanitizer_set_death_callback) /* the sanitizer's own report is the better one */
            signal(numbers[i], die);
    }
    signal(SIGALRM, die);
    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(keep_current);
}

static void run_current(void)
{
    alarm(STUCK_AFTER_S);
    /* A copy of exactly that size, so that a byte beyond it is noticed. */
    uint8_t *copy = malloc(current.size ? current.size : 1);
    if (!copy)
        abort();
    memcpy(copy, current.bytes, current.size);
    LLVMFuzzerTestOneInput(copy, current.size);
    free(copy);
    alarm(0);
}

/* --- the corpus --- */

static bool load(struct input *input, const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t got = fd < 0 ? -1 : read(fd, input->bytes, INPUT_MOST);
    if (fd >= 0)
        close(fd);
    input->size = got > 0 ? (size_t)got : 0;
    return got >= 0;
}

/* Sorted, so that a seed means the same everywhere. */
static void load_corpus(const char *directory)
{
    struct dirent **names;
    const int count = scandir(directory, &names, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", directory, names[i]->d_name);
        if (names[i]->d_name[0] != '.' && corpus_count < CORPUS_MOST && load(&corpus[corpus_count], path))
            corpus_count++;
        free(names[i]);
    }
    if (count >= 0)
        free(names);
}

/* --- changing an input --- */

static void insert(struct input *input, size_t at, const void *bytes, size_t size)
{
    if (size > INPUT_MOST - input->size)
        size = INPUT_MOST - input->size;
    memmove(input->bytes + at + size, input->bytes + at, input->size - at);
    memmove(input->bytes + at, bytes, size);
    input->size += size;
}

static void insert_word(struct input *input)
{
    size_t count = 0;
    while (fuzz_words[count])
        count++;
    const char *word = count ? fuzz_words[below(count)] : "";
    insert(input, below(input->size + 1), word, strlen(word));
}

static void insert_part_of_another(struct input *input)
{
    const struct input *other = &corpus[below(corpus_count)];
    const size_t from = below(other->size);
    insert(input, below(input->size + 1), other->bytes + from, below(other->size - from + 1));
}

static void remove_some(struct input *input)
{
    const size_t from = below(input->size);
    const size_t size = below(input->size - from + 1);
    memmove(input->bytes + from, input->bytes + from + size, input->size - from - size);
    input->size -= size;
}

static void repeat_some(struct input *input)
{
    uint8_t part[64];
    const size_t from = below(input->size);
    size_t size = below(input->size - from + 1);
    size = size < sizeof part ? size : sizeof part;
    memcpy(part, input->bytes + from, size);
    insert(input, below(input->size + 1), part, size);
}

static void change(struct input *input)
{
    static const uint8_t special[] = { 0, 1, '\n', '\r', ' ', '%', '-', '/', '0', '9', ':', '?', '@', 127, 128, 255 };
    switch (below(7)) {
    case 0:
        if (input->size)
            input->bytes[below(input->size)] ^= (uint8_t)(1u << below(8));
        break;
    case 1:
        if (input->size)
            input->bytes[below(input->size)] = special[below(sizeof special)];
        break;
    case 2:
        insert(input, below(input->size + 1), &special[below(sizeof special)], 1);
        break;
    case 3:
        insert_word(input);
        break;
    case 4:
        insert_part_of_another(input);
        break;
    case 5:
        remove_some(input);
        break;
    default:
        repeat_some(input);
        break;
    }
}

/* --- main --- */

static uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

int main(int argc, char **argv)
{
    struct stat about;
    if (argc != 2 || stat(argv[1], &about) != 0) {
        fprintf(stderr, "usage: %s CORPUS-DIRECTORY | FILE\n", argv[0]);
        return 2;
    }
    watch_for_failures();
    if (!S_ISDIR(about.st_mode)) {
        if (!load(&current, argv[1]))
            return 2;
        run_current();
        return 0;
    }
    load_corpus(argv[1]);
    if (corpus_count == 0) {
        fprintf(stderr, "%s is empty\n", argv[1]);
        return 2;
    }
    const uint64_t seed = number_from("FUZZ_SEED", (uint64_t)now_ns());
    const uint64_t most = number_from("FUZZ_RUNS", UINT64_MAX);
    const int64_t end = now_ns() + (int64_t)number_from("FUZZ_SECONDS", 3) * INT64_C(1000000000);
    printf("FUZZ_SEED=%llu\n", (unsigned long long)seed);
    fflush(stdout);
    state = seed;
    for (size_t i = 0; i < corpus_count; i++) {
        current = corpus[i];
        run_current();
    }
    uint64_t runs = corpus_count;
    for (; runs < most && now_ns() < end; runs++) {
        current = corpus[below(corpus_count)];
        for (size_t changes = 1 + below(8); changes > 0; changes--)
            change(&current);
        run_current();
    }
    printf("%llu inputs\n", (unsigned long long)runs);
    return 0;
}
