/* SPDX-License-Identifier: MIT
 *
 * module_old.c: a module for another version of the engine interface.
 */
#include "engine.h"

extern const struct hfi_engine hfi_module_engine;
HFI_API const struct hfi_engine hfi_module_engine = { .abi = HFI_ENGINE_ABI + 1, .name = "consul" };
