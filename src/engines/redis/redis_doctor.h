/* SPDX-License-Identifier: MIT
 *
 * redis_doctor.h: what the files that examine Redis servers share, and the redlock engine with them.
 *
 *   redis_doctor.c         asking a server what it is and how it is set up; which servers there are to ask
 *   redis_doctor_server.c  what follows from that for locks on it
 *   redis_doctor_rights.c  whether our user may do what it must, and who else uses the names of our locks
 *   redis_doctor_group.c   Sentinels and clusters: when another server takes the place of one
 */
#ifndef HFI_REDIS_DOCTOR_H
#define HFI_REDIS_DOCTOR_H

#include "redis.h"

/* What CONFIG GET is asked for. */
enum redis_setting {
    REDIS_APPENDFSYNC,
    REDIS_NO_APPENDFSYNC_ON_REWRITE,
    REDIS_SAVE,
    REDIS_STOP_WRITES,
    REDIS_MAXMEMORY,
    REDIS_MAXMEMORY_POLICY,
    REDIS_MIN_REPLICAS,
    REDIS_MIN_REPLICAS_LAG,
    REDIS_REPLICA_READ_ONLY,
    REDIS_OUTPUT_LIMITS,
    REDIS_TIMEOUT,
    REDIS_KEEPALIVE,
    REDIS_MAXCLIENTS,
    REDIS_NODE_TIMEOUT,
    REDIS_SETTINGS
};

/* A server, and what it has said. */
struct redis_patient {
    struct redis_store *store;
    struct redis_node *node;
    const struct hfi_examination *examination;
    hfi_time deadline_ns;
    bool one_of_many;        /* its address is said */
    redisReply *info, *time; /* NULL: it has not answered; or errors */
    redisReply *settings[REDIS_SETTINGS];
    int64_t ahead_ms, unsure_ms; /* its clock, of ours; and by how much that may be wrong */
};

#define REDIS_VALUE_MAX 160

/* Asks. HF_OK: it has answered, if only with errors. */
hf_status hfi_redis_patient_ask(struct redis_patient *patient, hf_error *err);
void hfi_redis_patient_free(struct redis_patient *patient);
/* As hfi_finding(), with the server's address in front if there are several. */
void hfi_redis_say(const struct redis_patient *patient, hf_finding_level level, const char *what, const char *format,
                   ...) __attribute__((format(printf, 4, 5)));
/* A field of INFO; "" if it has none. */
const char *hfi_redis_info(const struct redis_patient *patient, const char *field, char out[REDIS_VALUE_MAX]);
long long hfi_redis_info_number(const struct redis_patient *patient, const char *field);
/* A setting; NULL: it is not known. */
const char *hfi_redis_setting(const struct redis_patient *patient, enum redis_setting setting);
long long hfi_redis_setting_number(const struct redis_patient *patient, enum redis_setting setting, long long unknown);
/* One command to one server. HF_OK: *reply is there, perhaps an error. */
hf_status hfi_redis_patient_command(const struct redis_patient *patient, struct redis_command *command,
                                    redisReply **reply, hf_error *err);

/* --- redis_doctor_server.c --- */

/* Says all that follows from what it has said. */
void hfi_redis_examine_server(const struct redis_patient *patient);

/* --- redis_doctor_rights.c --- */

/* Tries every command that the dialect needs, in a way that changes nothing. */
void hfi_redis_examine_rights(const struct redis_patient *patient);
void hfi_redis_examine_names(const struct redis_patient *patient);

/* --- redis_doctor_group.c --- */

void hfi_redis_examine_sentinels(const struct redis_patient *master);
/* What one server of the cluster says of all. */
void hfi_redis_examine_cluster(const struct redis_patient *patient);

/* --- redis_doctor.c --- */

/* As the engine's examine(). */
hf_status hfi_redis_examine(void *memory, const struct hfi_examination *examination, hfi_time deadline_ns,
                            hf_error *err);

#endif
