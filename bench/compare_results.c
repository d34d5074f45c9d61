/* SPDX-License-Identifier: MIT
 *
 * compare_results.c: the list of measures, each against its bar, as a table or as JSON.
 */
#include "compare.h"

#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

void results_add(struct results *results, struct row row)
{
    if (results->rows == ROWS_MAX)
        die("too many rows");
    if (row.ratio == 0 && row.raw > 0)
        row.ratio = row.ours / row.raw;
    results->row[results->rows++] = row;
}

bool row_within_bar(const struct row *row)
{
    switch (row->judged) {
    case RATIO_AT_MOST:
        return row->ratio <= row->bar;
    case RATIO_AT_LEAST:
        return row->ratio >= row->bar;
    case OURS_AT_MOST:
        return row->ours <= row->bar;
    case OURS_AT_LEAST:
        return row->ours >= row->bar;
    case NOT_JUDGED:
        return true;
    }
    return false;
}

static bool judged_by_ratio(const struct row *row)
{
    return row->judged == RATIO_AT_MOST || row->judged == RATIO_AT_LEAST;
}

static const char *bar_sign(const struct row *row)
{
    return row->judged == RATIO_AT_MOST || row->judged == OURS_AT_MOST ? "<=" : ">=";
}

static const char *number(char *buffer, size_t size, double value)
{
    if (value < 0)
        snprintf(buffer, size, "-");
    else
        snprintf(buffer, size, value != 0 && value < 1 ? "%.4f" : value < 100 ? "%.2f" : "%.0f", value);
    return buffer;
}

static void print_table(const struct results *results)
{
    size_t over = 0;

    printf("%-38s %-26s %-8s %10s %10s %8s %9s\n", "measure", "against", "unit", "ours", "raw", "ratio", "bar");
    for (size_t i = 0; i < results->rows; i++) {
        const struct row *row = &results->row[i];
        char ours[32], raw[32], ratio[32] = "-", bar[32];

        if (row->ratio > 0 && (judged_by_ratio(row) || row->judged == NOT_JUDGED))
            snprintf(ratio, sizeof ratio, "%.2f", row->ratio);
        snprintf(bar, sizeof bar, row->judged == NOT_JUDGED ? "-" : "%s %g", bar_sign(row), row->bar);
        over += !row_within_bar(row);
        printf("%-38s %-26s %-8s %10s %10s %8s %9s  %s\n", row->name, row->against, row->unit,
               number(ours, sizeof ours, row->ours), number(raw, sizeof raw, row->raw), ratio, bar,
               row->judged == NOT_JUDGED ? ""
               : row_within_bar(row)     ? "ok"
                                         : "OVER");
    }
    if (over > 0)
        printf("\n%zu of %zu OVER the bar\n", over, results->rows);
    else
        printf("\nall %zu within the bar\n", results->rows);
}

static void print_json_shares(const char *key, const uint64_t share[CROWD])
{
    printf("\"%s\": [", key);
    for (int i = 0; i < CROWD; i++)
        printf("%s%llu", i > 0 ? ", " : "", (unsigned long long)share[i]);
    printf("]");
}

static void print_json_verdict(const struct row *row)
{
    if (row->judged == NOT_JUDGED)
        printf("\"judged\": null, \"bar\": null, \"limit\": null, \"ok\": true");
    else
        printf("\"judged\": \"%s\", \"bar\": \"%s\", \"limit\": %g, \"ok\": %s",
               judged_by_ratio(row) ? "ratio" : "ours", bar_sign(row), row->bar,
               row_within_bar(row) ? "true" : "false");
}

static void print_json(const struct results *results)
{
    struct utsname system;
    char date[32];
    time_t now = time(NULL);
    struct tm utc;

    uname(&system);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime_r(&now, &utc));
    printf("{\n  \"version\": \"%s\", \"date\": \"%s\", \"kernel\": \"%s %s\", \"machine\": \"%s\", \"cores\": %ld,\n",
           hf_version(), date, system.sysname, system.release, system.machine, sysconf(_SC_NPROCESSORS_ONLN));
    if (results->server[0] != 0)
        printf("  \"server\": \"%s\",\n", results->server);
    printf("  \"measures\": [\n");
    for (size_t i = 0; i < results->rows; i++) {
        const struct row *row = &results->row[i];

        printf("    {\"measure\": \"%s\", \"against\": \"%s\", \"unit\": \"%s\", \"ours\": %.6g, ", row->name,
               row->against, row->unit, row->ours);
        if (row->raw >= 0)
            printf("\"raw\": %.6g, \"ratio\": %.4g, ", row->raw, row->ratio);
        else
            printf("\"raw\": null, \"ratio\": null, ");
        print_json_verdict(row);
        printf("}%s\n", i + 1 < results->rows ? "," : "");
    }
    printf("  ]");
    if (results->has_shares) {
        printf(",\n  \"shares\": {");
        print_json_shares("holdfast", results->share[0]);
        printf(", ");
        print_json_shares("flock", results->share[1]);
        printf("}");
    }
    printf("\n}\n");
}

void results_print(const struct results *results, bool json)
{
    if (json)
        print_json(results);
    else
        print_table(results);
}
