/* SPDX-License-Identifier: MIT
 *
 * registry.c: which scheme is whose. Engines that need a client library are modules, loaded when their URL is first
 * used, so that `holdfast run` on a file starts as fast as flock(1) does, and a machine without libpq loses one engine
 * only.
 */
#include "registry.h"
#include "core.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODULE_SYMBOL "hfi_module_engine"

static const struct row {
    const char *name;
    const char *schemes; /* each followed by a space */
    const struct hfi_engine *built_in;
    const char *summary; /* for those that are not here */
    const char *family;  /* it is in the package holdfast-FAMILY, and built with -DFAMILY=enabled */
    const char *needs;   /* what a module's engine needs besides itself */
} table[] = {
    { "file", "file ", &hfi_engine_file, NULL, NULL, NULL },
    { "mem", "mem ", &hfi_engine_mem, NULL, NULL, NULL },
    { "redis", "redis rediss redis+unix redis+sentinel redis+cluster ", &hfi_engine_redis,
      "machines that share a Redis or Valkey", "redis", "libhiredis" },
    { "redlock", "redlock ", &hfi_engine_redlock, "machines that share several independent Redis or Valkey masters",
      "redis", "libhiredis" },
    { "postgres", "postgres postgresql ", NULL, "machines that share a PostgreSQL database", "postgres", "libpq5" },
    { "mysql", "mysql mariadb ", NULL, "machines that share a MySQL or MariaDB database", "mysql", "libmariadb3" },
    { "sqlite", "sqlite ", &hfi_engine_sqlite, "processes that share an SQLite file", "sqlite", "libsqlite3-0" },
    { "zookeeper", "zookeeper ", &hfi_engine_zookeeper, "machines that share a ZooKeeper ensemble", "zookeeper",
      "libzookeeper-st2" },
    { "etcd", "etcd etcds ", &hfi_engine_etcd, "machines that share an etcd cluster", "etcd",
      "libnghttp2-14 and libprotobuf-c1" },
    { "consul", "consul consuls ", &hfi_engine_consul, "machines that share a Consul cluster", "consul",
      "libjansson4" },
    { "memcached", "memcached memcached+unix ", &hfi_engine_memcached, "machines that share a memcached server",
      "memcached", NULL },
};
#define ROWS (sizeof table / sizeof table[0])

/* For good: a module's code may be on some thread's stack. No mutex, which a fork could leave locked: loading twice is
 * harmless. */
static const struct hfi_engine *_Atomic loaded[ROWS];

static const struct row *row_of(const char *scheme)
{
    char wanted[34];
    snprintf(wanted, sizeof wanted, "%s ", scheme);
    for (size_t i = 0; i < ROWS; i++) {
        const char *place = table[i].schemes;
        while ((place = strstr(place, wanted)) != NULL) {
            if (place == table[i].schemes || place[-1] == ' ')
                return &table[i];
            place++;
        }
    }
    return NULL;
}

static const struct hfi_engine *load(const struct row *row, char *why, size_t size)
{
    char directory[PATH_MAX], path[PATH_MAX + 32];
    if (hfi_why_not_in_one_file) {
        snprintf(why, size, "%s", hfi_why_not_in_one_file);
        errno = ENOENT;
        return NULL;
    }
    hfi_module_directory(directory);
    snprintf(path, sizeof path, "%s/%s.so", directory, row->name);
    const int fd = open(path, O_RDONLY | O_CLOEXEC); /* tells a missing file from one that cannot be opened now */
    if (fd < 0) {
        if (errno == ENOENT)
            snprintf(why, size, "install the package holdfast-%s, or build with -D%s=enabled (there is no %.100s)",
                     row->family, row->family, path);
        else
            snprintf(why, size, "%.100s cannot be opened now", path);
        return NULL;
    }
    close(fd);
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!module) {
        snprintf(why, size, "install %s (%.120s)", row->needs, dlerror());
        errno = ENOENT;
        return NULL;
    }
    const struct hfi_engine *engine = dlsym(module, MODULE_SYMBOL);
    if (engine && engine->abi == HFI_ENGINE_ABI && strcmp(engine->name, row->name) == 0)
        return engine;
    snprintf(why, size, "%.100s is not a %s module for holdfast %s", path, row->name, hf_version());
    dlclose(module);
    errno = ENOENT;
    return NULL;
}

/* The engine of a row, or NULL and why not. */
static const struct hfi_engine *engine_of(const struct row *row, char *why, size_t size)
{
    const size_t index = (size_t)(row - table);
    why[0] = 0;
    if (row->built_in)
        return row->built_in;
    const struct hfi_engine *engine = atomic_load(&loaded[index]);
    if (!engine) {
        engine = load(row, why, size);
        atomic_store(&loaded[index], engine);
    }
    return engine;
}

hf_status hfi_registry_find(const struct hfi_engine **out, const char *scheme, hf_error *err)
{
    char why[200];
    const struct row *row = row_of(scheme);
    if (!row)
        return hfi_fail(err, HF_INVALID, 0, "unknown scheme \"%s:\"; `holdfast engines` lists those there are", scheme);
    *out = engine_of(row, why, sizeof why);
    if (!*out)
        return hfi_fail(err, errno == EMFILE || errno == ENFILE ? HF_NOMEM : HF_UNSUPPORTED, 0,
                        "the %s engine is not here: %s", row->name, why);
    return HF_OK;
}

static void schemes_for_people(char *out, size_t size, const char *schemes)
{
    size_t used = 0;
    for (; *schemes && used + 3 < size; schemes++) {
        if (*schemes != ' ') {
            out[used++] = *schemes;
        } else {
            out[used++] = ':';
            if (schemes[1])
                out[used++] = ' ';
        }
    }
    out[used] = 0;
}

void hf_engines(void (*each)(const hf_engine_info *info, void *arg), void *arg)
{
    for (size_t i = 0; i < ROWS; i++) {
        char why[200];
        char schemes[160];
        const struct hfi_engine *engine = engine_of(&table[i], why, sizeof why);
        schemes_for_people(schemes, sizeof schemes, table[i].schemes);
        const hf_engine_info info = { .size = sizeof info,
                                      .name = table[i].name,
                                      .schemes = engine ? engine->schemes : schemes, /* what it really answers to */
                                      .summary = engine ? engine->summary : table[i].summary,
                                      .caps = engine ? engine->caps : 0,
                                      .present = engine != NULL,
                                      .missing = why };
        each(&info, arg);
    }
}
