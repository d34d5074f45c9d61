/* SPDX-License-Identifier: MIT
 *
 * registry.h: the engines that are always there.
 */
#ifndef HFI_REGISTRY_H
#define HFI_REGISTRY_H

#include "engine.h"

extern const struct hfi_engine hfi_engine_mem;
extern const struct hfi_engine hfi_engine_file;
extern const struct hfi_engine hfi_engine_memcached;

/* Those of the command in one file (cli/meson.build), which has no modules; elsewhere their addresses are NULL. */
#define HFI_IN_ONE_FILE __attribute__((weak, visibility("hidden")))
extern const struct hfi_engine hfi_engine_redis HFI_IN_ONE_FILE;
extern const struct hfi_engine hfi_engine_redlock HFI_IN_ONE_FILE;
extern const struct hfi_engine hfi_engine_sqlite HFI_IN_ONE_FILE;
extern const struct hfi_engine hfi_engine_zookeeper HFI_IN_ONE_FILE;
extern const struct hfi_engine hfi_engine_etcd HFI_IN_ONE_FILE;
extern const struct hfi_engine hfi_engine_consul HFI_IN_ONE_FILE;
/* Why it has not the others. */
extern const char hfi_why_not_in_one_file[] HFI_IN_ONE_FILE;

#endif
