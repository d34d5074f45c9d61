/* SPDX-License-Identifier: MIT
 *
 * doctor.h: what the files of `holdfast doctor` share: cmd_doctor.c asks the store, doctor_here.c looks at what lies
 * between it and us.
 */
#ifndef HFC_DOCTOR_H
#define HFC_DOCTOR_H

#include "cli.h"

#define HFC_DOCTOR_LOCK "holdfast-doctor"

struct hfc_doctor {
    bool json;
    bool colored;
    uint32_t ttl_ms;
    unsigned counts[HF_FINDING_BROKEN + 1];
};

/* Prints a finding. `arg` is a struct hfc_doctor. */
void hfc_doctor_take(const hf_finding *finding, void *arg);
/* The same of our own. The format yields up to three lines: the sentence, the evidence, the remedy. */
void hfc_doctor_say(struct hfc_doctor *doctor, hf_finding_level level, const char *what, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* What needs no store: names, clock, descriptors, proxies. `url`: without passwords. */
void hfc_doctor_here(struct hfc_doctor *doctor, const char *url);
/* How long the store takes to answer. HF_OK, or why it could not be asked, which is said. */
hf_status hfc_doctor_latency(struct hfc_doctor *doctor, hf_client *client);
/* Takes HFC_DOCTOR_LOCK, renews it by hand and releases it. HF_OK, or what went wrong, which is said. */
hf_status hfc_doctor_lock(struct hfc_doctor *doctor, hf_client *client);

#endif
