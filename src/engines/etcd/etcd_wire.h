/* SPDX-License-Identifier: MIT
 *
 * etcd_wire.h: the connection to a server that all threads of a client share: each call is a stream of its own, and
 * those of threads that are in each other's way leave in one write.
 *
 * A call that was not answered in time is canceled, and what comes late for it is thrown away. If the server has said
 * nothing else meanwhile the connection is left: those who still wait for answers may get them, but nothing more is
 * asked on it, and it is closed when the last of them has gone.
 */
#ifndef HFI_ETCD_WIRE_H
#define HFI_ETCD_WIRE_H

#include "etcd.h"

/* Begins the question's calls, whose messages are in their streams, and waits until all of them are over. A renewal
 * that would go along with others has a connection of its own. HF_UNKNOWN: sent, in whole or in part, but not answered.
 * HF_UNAVAILABLE: not sent. */
hf_status hfi_etcd_wire_ask(struct etcd_store *store, struct etcd_node *node, struct etcd_question *question,
                            const char *token, hfi_time deadline_ns, hf_error *err);
/* Nobody asks any more. */
void hfi_etcd_wires_close(struct etcd_store *store, struct etcd_node *node);

#endif
