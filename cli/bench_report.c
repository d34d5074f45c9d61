/* SPDX-License-Identifier: MIT
 *
 * bench_report.c: counting of durations, and the two shapes in which `holdfast bench` prints what it found.
 */
#include "bench.h"

static uint32_t bucket_of(uint64_t ns)
{
    uint32_t octave;

    if (ns < (1u << BENCH_SUB_BITS))
        return (uint32_t)ns;
    octave = 63u - (uint32_t)__builtin_clzll(ns) - BENCH_SUB_BITS;
    /* The leading one of the mantissa is what lifts the index into its octave. */
    return (octave << BENCH_SUB_BITS) + (uint32_t)(ns >> octave);
}

/* The middle of a bucket. */
static double bucket_middle(uint32_t bucket)
{
    uint32_t octave = bucket >> BENCH_SUB_BITS;
    uint64_t mantissa;

    if (octave <= 1)
        return (double)bucket;
    octave--;
    mantissa = bucket - ((uint64_t)octave << BENCH_SUB_BITS);
    return (double)(mantissa << octave) + (double)(UINT64_C(1) << octave) / 2;
}

void bench_histogram_add(struct bench_histogram *histogram, int64_t ns)
{
    uint64_t duration = ns < 0 ? 0 : (uint64_t)ns;

    histogram->count++;
    histogram->bucket[bucket_of(duration)]++;
    if (histogram->max_ns < duration)
        histogram->max_ns = duration;
}

static void histogram_merge(struct bench_histogram *into, const struct bench_histogram *from)
{
    into->count += from->count;
    if (into->max_ns < from->max_ns)
        into->max_ns = from->max_ns;
    for (uint32_t i = 0; from->count > 0 && i < BENCH_BUCKETS; i++)
        into->bucket[i] += from->bucket[i];
}

static double percentile_us(const struct bench_histogram *histogram, double percent)
{
    uint64_t rank = (uint64_t)((double)histogram->count * percent / 100.0);
    uint64_t seen = 0;

    for (uint32_t i = 0; i < BENCH_BUCKETS; i++) {
        seen += histogram->bucket[i];
        if (seen > rank) {
            double middle = bucket_middle(i);

            return (middle < (double)histogram->max_ns ? middle : (double)histogram->max_ns) / 1e3;
        }
    }
    return (double)histogram->max_ns / 1e3;
}

/* The four durations in the order in which both shapes print them. */
enum { ACQUIRE, RELEASE, WAIT, HANDOFF, DURATIONS };
static const char *const duration_keys[DURATIONS] = { "acquire_us", "release_us", "wait_us", "handoff_us" };
static const char *const duration_words[DURATIONS] = { "acquire", "release", "wait", "hand-off" };

struct summary {
    struct bench_histogram duration[DURATIONS];
    double seconds;
    uint64_t pairs;
    uint64_t changes;
    uint64_t overlaps;
    double share_min;
    double share_max;
    double cpu_pct;
};

static void summarize(const struct bench_run *run, struct summary *sum)
{
    uint64_t least = UINT64_MAX;
    uint64_t most = 0;

    sum->seconds = (double)run->window_ms / 1e3;
    sum->overlaps = atomic_load(&run->board->overlaps);
    sum->cpu_pct = run->procs ? 0 : run->cpu_pct;
    for (uint32_t i = 0; i < run->workers; i++) {
        const struct bench_slot *slot = &run->board->slot[i];
        uint64_t pairs = atomic_load(&slot->pairs);

        histogram_merge(&sum->duration[ACQUIRE], &slot->acquire);
        histogram_merge(&sum->duration[RELEASE], &slot->release);
        histogram_merge(&sum->duration[WAIT], &slot->wait);
        histogram_merge(&sum->duration[HANDOFF], &slot->handoff);
        sum->pairs += pairs;
        sum->changes += slot->changes;
        sum->cpu_pct += run->procs ? slot->cpu_pct : 0;
        least = pairs < least ? pairs : least;
        most = pairs > most ? pairs : most;
    }
    if (sum->pairs > 0) {
        sum->share_min = (double)least / (double)sum->pairs;
        sum->share_max = (double)most / (double)sum->pairs;
    }
}

/* What was not measured in this mode is null: a zero would be a claim. */
static void json_duration(FILE *out, const struct bench_histogram *histogram)
{
    if (histogram->count == 0)
        fprintf(out, "{\"p50\": null, \"p99\": null, \"max\": null}");
    else
        fprintf(out, "{\"p50\": %.3f, \"p99\": %.3f, \"max\": %.3f}", percentile_us(histogram, 50),
                percentile_us(histogram, 99), (double)histogram->max_ns / 1e3);
}

static void report_json(const struct bench_run *run, const struct summary *sum, FILE *out)
{
    fprintf(out, "{\"mode\": \"%s\", \"url\": ", run->mode_name);
    hfc_json_string(out, run->url);
    fprintf(out, ", \"workers\": %u, \"procs\": %s, \"seconds\": %.3f, \"pairs\": %llu, \"pairs_per_s\": %.1f",
            run->workers, run->procs ? "true" : "false", sum->seconds, (unsigned long long)sum->pairs,
            (double)sum->pairs / sum->seconds);
    for (int i = 0; i < DURATIONS; i++) {
        fprintf(out, ", \"%s\": ", duration_keys[i]);
        json_duration(out, &sum->duration[i]);
    }
    if (run->mode != BENCH_HANDOFF && sum->pairs > 0)
        fprintf(out, ", \"share\": {\"min\": %.6f, \"max\": %.6f}", sum->share_min, sum->share_max);
    else
        fprintf(out, ", \"share\": {\"min\": null, \"max\": null}");
    fprintf(out, ", \"client_cpu_pct\": %.1f", sum->cpu_pct);
    if (run->mode == BENCH_CONTEND)
        fprintf(out, ", \"owner_changes_per_s\": %.1f, \"overlaps\": %llu", (double)sum->changes / sum->seconds,
                (unsigned long long)sum->overlaps);
    fprintf(out, "}\n");
}

/* A duration with the unit that suits it. */
static const char *readable(char *buffer, size_t size, double us)
{
    if (us < 1)
        snprintf(buffer, size, "%.0f ns", us * 1e3);
    else if (us < 1e3)
        snprintf(buffer, size, us < 100 ? "%.2f us" : "%.0f us", us);
    else if (us < 1e6)
        snprintf(buffer, size, "%.2f ms", us / 1e3);
    else
        snprintf(buffer, size, "%.2f s", us / 1e6);
    return buffer;
}

static void table_durations(const struct summary *sum, FILE *out)
{
    fprintf(out, "\n%-18s %12s %12s %12s\n", "", "p50", "p99", "max");
    for (int i = 0; i < DURATIONS; i++) {
        const struct bench_histogram *histogram = &sum->duration[i];
        char p50[32], p99[32], max[32];

        if (histogram->count == 0)
            continue;
        fprintf(out, "%-18s %12s %12s %12s\n", duration_words[i],
                readable(p50, sizeof p50, percentile_us(histogram, 50)),
                readable(p99, sizeof p99, percentile_us(histogram, 99)),
                readable(max, sizeof max, (double)histogram->max_ns / 1e3));
    }
    fprintf(out, "\n");
}

static void report_table(const struct bench_run *run, const struct summary *sum, FILE *out)
{
    char url[sizeof run->url * 4];

    fprintf(out, "%s on %s, %u %s%s, %.3g s\n", run->mode_name, hfc_printable(url, sizeof url, run->url), run->workers,
            run->procs ? "process" : "thread",
            run->workers == 1 ? ""
            : run->procs      ? "es"
                              : "s",
            sum->seconds);
    table_durations(sum, out);
    fprintf(out, "%-18s %12llu   (%.0f a second)\n", run->mode == BENCH_HANDOFF ? "hand-offs" : "pairs",
            (unsigned long long)sum->pairs, (double)sum->pairs / sum->seconds);
    if (run->mode == BENCH_CONTEND)
        fprintf(out, "%-18s %12llu   (%.0f a second)\n", "changes of owner", (unsigned long long)sum->changes,
                (double)sum->changes / sum->seconds);
    if (run->mode == BENCH_THROUGHPUT || run->mode == BENCH_CONTEND)
        fprintf(out, "%-18s %5.2f %%  to  %.2f %% of all pairs (even: %.2f %%)\n", "share of a worker",
                sum->share_min * 100, sum->share_max * 100, 100.0 / run->workers);
    fprintf(out, "%-18s %10.0f %%   (100 %% is one core)\n", "client processor", sum->cpu_pct);
    if (run->mode == BENCH_CONTEND)
        fprintf(out, "%-18s %12llu\n", "overlaps", (unsigned long long)sum->overlaps);
}

void bench_report(const struct bench_run *run, FILE *out)
{
    struct summary sum = { 0 };

    summarize(run, &sum);
    if (run->json)
        report_json(run, &sum, out);
    else
        report_table(run, &sum, out);
}
