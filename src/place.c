/* SPDX-License-Identifier: MIT
 *
 * place.c: where this library lies, and what was installed together with it. Found when it is asked for, so that a tree
 * can be installed anywhere and moved.
 */
#include "core.h"
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

/* The directory of the library, and who owns the library. False if that cannot be said for certain: a program that it
 * is linked into has no name but the one that its caller chose; a relative name means another file after chdir(). */
static bool library_directory(char out[PATH_MAX], uid_t *owner)
{
    static const char inside = 0;
    Dl_info info;
    struct link_map *map = NULL;
    struct stat library;
    if (!dladdr1(&inside, &info, (void **)&map, RTLD_DL_LINKMAP) || !map || map->l_name[0] != '/')
        return false;
    if (!realpath(map->l_name, out) || stat(out, &library) != 0)
        return false;
    *owner = library.st_uid;
    *strrchr(out, '/') = 0;
    return true;
}

/* Code is loaded from a directory only if whoever could put it there could have changed the library as well. */
static bool is_trusted(const char *directory, uid_t owner)
{
    struct stat stat_of;
    return stat(directory, &stat_of) == 0 && S_ISDIR(stat_of.st_mode) && !(stat_of.st_mode & S_IWOTH) &&
           (stat_of.st_uid == 0 || stat_of.st_uid == owner);
}

void hfi_module_directory(char out[PATH_MAX])
{
    char library[PATH_MAX];
    uid_t owner;
    /* Not for programs that run with more rights than their caller: secure_getenv() is NULL there. */
    const char *chosen = secure_getenv("HOLDFAST_MODULES");
    if (chosen && *chosen) {
        snprintf(out, PATH_MAX, "%s", chosen);
        return;
    }
    if (!getauxval(AT_SECURE) && library_directory(library, &owner) &&
        snprintf(out, PATH_MAX, "%s/holdfast", library) < PATH_MAX && is_trusted(out, owner))
        return;
    snprintf(out, PATH_MAX, "%s", HFI_MODULE_DIR);
}

void hfi_data_file(char out[HFI_DATA_FILE_MAX], const char *name)
{
    char library[PATH_MAX], path[PATH_MAX], found[PATH_MAX];
    uid_t owner;
    const bool known = library_directory(library, &owner) &&
                       snprintf(path, sizeof path, "%s/" HFI_DATA_FROM_LIBRARY "/%s", library, name) < PATH_MAX &&
                       realpath(path, found) && strlen(found) < HFI_DATA_FILE_MAX;
    snprintf(out, HFI_DATA_FILE_MAX, "%.*s", HFI_DATA_FILE_MAX - 1, known ? found : name);
}
