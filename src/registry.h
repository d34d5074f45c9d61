/* SPDX-License-Identifier: MIT
 *
 * registry.h: the engines that are always there.
 */
#ifndef HFI_REGISTRY_H
#define HFI_REGISTRY_H

#include "engine.h"

extern const struct hfi_engine hfi_engine_mem;
extern const struct hfi_engine hfi_engine_file;

#endif
