/* SPDX-License-Identifier: MIT
 *
 * sqlite_doctor.c: looks at the file, its folder, the journal and those who write to it, for whatever could lose a
 * lock.
 *
 * The file is never opened here but by SQLite: see sqlite_connect.c. Who keeps it locked is seen in /proc/locks, by the
 * bytes that SQLite locks to write.
 */
#include "sqlite.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#define OVERLAY 0x794c7630u
#define TMPFS 0x01021994u
/* SQLite locks this byte of the database, or of the -shm file with a write-ahead log, for as long as it writes. */
#define RESERVED_BYTE 1073741825
#define WAL_WRITE_BYTE 120
#define LOOKS 20
#define PAUSE (5 * HFI_MS)
#define LOCKS_MOST 65536
#define ROOM_LEAST (INT64_C(4) << 20)
#define LOG_LARGE (INT64_C(64) << 20)

enum synchronous { SYNCHRONOUS_OFF, SYNCHRONOUS_NORMAL, SYNCHRONOUS_FULL, SYNCHRONOUS_EXTRA };

/* What the database says of itself. */
struct insides {
    char journal[16];
    int synchronous;
    struct sqlite_tables tables;
    char damage[160]; /* of our tables; "": none */
};

/* --- who keeps the file locked --- */

/* A line of /proc/locks: "1: POSIX  ADVISORY  WRITE 4711 fe:00:131 1073741825 1073741825"; the process, 0: not it. */
static long writer_in(const char *line, uint64_t database, uint64_t shared_memory)
{
    char kind[16], last[24];
    long process;
    unsigned long long inode, first;
    if (sscanf(line, "%*d: %*s %*s %15s %ld %*x:%*x:%llu %llu %23s", kind, &process, &inode, &first, last) != 5 ||
        strcmp(kind, "WRITE") != 0)
        return 0;
    unsigned long long end = UINT64_MAX; /* "EOF" */
    sscanf(last, "%llu", &end);
    const bool in_database = inode == database && first <= RESERVED_BYTE && end >= RESERVED_BYTE;
    const bool in_log = shared_memory && inode == shared_memory && first <= WAL_WRITE_BYTE && end >= WAL_WRITE_BYTE;
    return in_database || in_log ? (process > 0 ? process : -1) : 0;
}

/* The process that writes now; 0: none, -1: one that cannot be seen. */
static long find_writer(char *text, uint64_t database, uint64_t shared_memory)
{
    long writer = 0;
    size_t used = 0;
    ssize_t length = 1;
    const int fd = HFI_FD(open("/proc/locks", O_RDONLY | O_CLOEXEC));
    while (fd >= 0 && length > 0 && used < LOCKS_MOST - 1) {
        length = read(fd, text + used, LOCKS_MOST - 1 - used);
        used += length > 0 ? (size_t)length : 0;
    }
    hfi_fd_close(fd);
    text[used] = 0;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line && !writer; line = strtok_r(NULL, "\n", &rest))
        writer = writer_in(line, database, shared_memory);
    return writer;
}

static uint64_t inode_of(const char *path)
{
    struct stat found;
    return stat(path, &found) == 0 ? (uint64_t)found.st_ino : 0;
}

static void look_for_writers(const struct sqlite_store *store, const struct hfi_examination *examination)
{
    char shm[PATH_MAX + 8];
    char *text = hfi_alloc(LOCKS_MOST);
    const struct timespec pause = { .tv_nsec = PAUSE };
    int times = 0;
    long writer = 0;
    snprintf(shm, sizeof shm, "%s-shm", store->config.path);
    const uint64_t database = inode_of(store->config.path), shared_memory = inode_of(shm);
    for (int i = 0; text && i < LOOKS; i++) {
        const long one = find_writer(text, database, shared_memory);
        times += one != 0;
        writer = one ? one : writer;
        ppoll(NULL, 0, &pause, NULL);
    }
    hfi_free(text);
    if (times == LOOKS)
        hfi_finding(examination, HF_FINDING_RISK, "writers",
                    "while another program keeps the file locked no lock is granted or renewed: one that is held is "
                    "lost when its time is over\n"
                    "process %ld had it locked for writing, %d of %d times (/proc/locks)\n"
                    "keep its transactions short, or give the locks a file of their own",
                    writer, times, LOOKS);
    else
        hfi_finding(examination, HF_FINDING_OK, "writers",
                    "nobody keeps the file locked\nsomebody wrote %d of %d times (/proc/locks)", times, LOOKS);
}

/* --- where the file is, and whose --- */

static void look_at_file_system(const struct sqlite_store *store, const struct hfi_examination *examination)
{
    struct statfs fs;
    const char *path = store->config.path;
    if (statfs(path, &fs) != 0)
        return;
    const int64_t room = (int64_t)fs.f_bavail * (int64_t)fs.f_frsize;
    const uint32_t type = (uint32_t)fs.f_type;
    if (type == OVERLAY || type == TMPFS)
        hfi_finding(examination, HF_FINDING_NOTE, "file system",
                    "%s\n%.200s is on %s (stat -f -c %%T)\na file on a disk of this machine",
                    type == TMPFS ? "it is in memory: after a reboot tokens begin anew, and what was done is forgotten"
                                  : "it is a container's own: other containers do not see these locks, and a new "
                                    "container begins with none",
                    path, type == TMPFS ? "tmpfs" : "overlay");
    else
        hfi_finding(examination, HF_FINDING_OK, "file system",
                    "it is this machine's own, and outlasts a reboot\n%.200s is on 0x%" PRIx32 " (stat -f -c %%T)",
                    path, type);
    if (room < ROOM_LEAST)
        hfi_finding(examination, HF_FINDING_RISK, "room",
                    "when the disk is full no lock is granted or renewed, and one that is held is lost when its time "
                    "is over\n%" PRId64 " KiB are free for %.200s (df)\nmake room",
                    room / 1024, path);
    else
        hfi_finding(examination, HF_FINDING_OK, "room", "there is room\n%" PRId64 " MiB are free (df)", room >> 20);
}

/* False: there is none. To ask for it would make another one. */
static bool look_at_file(const struct sqlite_store *store, const struct hfi_examination *examination)
{
    struct stat file, folder;
    char parent[PATH_MAX];
    const char *path = store->config.path;
    snprintf(parent, sizeof parent, "%s", path);
    strrchr(parent, '/')[1] = 0;
    if (stat(path, &file) != 0 || stat(parent, &folder) != 0) {
        hfi_finding(examination, HF_FINDING_BROKEN, "file",
                    "it is gone: no lock is granted, and what is held is forgotten\n%.200s: %s (stat)\n"
                    "put it back, or open the URL anew",
                    path, strerror(errno));
        return false;
    }
    if (file.st_nlink > 1)
        hfi_finding(examination, HF_FINDING_RISK, "file",
                    "who opens it by its other name has another journal: after a crash that damages the file, or a "
                    "lock is granted twice\n%.200s has %lu names (stat -c %%h)\nremove the others; use symbolic links",
                    path, (unsigned long)file.st_nlink);
    if (file.st_mode & S_IWOTH)
        hfi_finding(examination, HF_FINDING_RISK, "permissions",
                    "everybody on this machine can take a lock from its holder, or set its token back\n"
                    "%.200s has mode %04o (stat -c %%a)\nchmod o-w, and a group for those who share locks",
                    path, file.st_mode & 07777u);
    else if ((folder.st_mode & S_IWOTH) && !(folder.st_mode & S_ISVTX))
        hfi_finding(examination, HF_FINDING_RISK, "permissions",
                    "everybody on this machine can put another file in its place, and so free all locks\n"
                    "%.200s has mode %04o (stat -c %%a)\nchmod o-w, or +t",
                    parent, folder.st_mode & 07777u);
    else if (faccessat(AT_FDCWD, parent, W_OK, AT_EACCESS) != 0)
        hfi_finding(examination, HF_FINDING_BROKEN, "permissions",
                    "without a journal in its folder nothing can be written: no lock is granted\n"
                    "%.200s has mode %04o, and is not ours to write (stat -c %%a)\nchmod, chgrp",
                    parent, folder.st_mode & 07777u);
    else
        hfi_finding(examination, HF_FINDING_OK, "permissions",
                    "only those who may can change locks\n%.200s has mode %04o (stat -c %%a)", path,
                    file.st_mode & 07777u);
    return true;
}

/* --- what SQLite says --- */

static int take_text(sqlite3_stmt *row, void *arg)
{
    const char *text = (const char *)sqlite3_column_text(row, 0);
    snprintf(arg, sizeof((struct insides *)0)->journal, "%s", text ? text : "");
    return 0;
}

static int take_number(sqlite3_stmt *row, void *arg)
{
    *(int *)arg = sqlite3_column_int(row, 0);
    return 0;
}

/* "ok", or the first thing that is wrong. */
static int take_damage(sqlite3_stmt *row, void *arg)
{
    struct insides *insides = arg;
    const char *text = (const char *)sqlite3_column_text(row, 0);
    if (text && strcmp(text, "ok") != 0 && !*insides->damage)
        snprintf(insides->damage, sizeof insides->damage, "%.*s", (int)strcspn(text, "\n"), text);
    return 0;
}

/* A page that makes no sense at all is an error, and no line of the answer. */
static int check_table(struct sqlite_store *store, const char *end, struct insides *insides)
{
    char text[120];
    snprintf(text, sizeof text, "PRAGMA quick_check('%s%s')", store->config.table, end);
    const int code = hfi_sqlite_say(store, text, take_damage, insides);
    if ((code & 0xff) != SQLITE_CORRUPT)
        return code;
    snprintf(insides->damage, sizeof insides->damage, "%s", sqlite3_errstr(code));
    return SQLITE_OK;
}

static int look_inside(struct sqlite_store *store, void *arg)
{
    static const char *const ends[] = { "", "_waiters", "_grants", "_done" };
    struct insides *insides = arg;
    *insides = (struct insides){ .synchronous = -1 };
    int code = hfi_sqlite_say(store, "PRAGMA main.journal_mode", take_text, insides->journal);
    if (code == SQLITE_OK)
        code = hfi_sqlite_say(store, "PRAGMA main.synchronous", take_number, &insides->synchronous);
    if (code == SQLITE_OK)
        code = hfi_sqlite_look_at_tables(store, &insides->tables);
    for (size_t i = 0; i < 4 && code == SQLITE_OK && insides->tables.there; i++)
        code = check_table(store, ends[i], insides);
    return code;
}

static void judge_tables(const struct sqlite_store *store, const struct hfi_examination *examination,
                         const struct insides *insides)
{
    const char *table = store->config.table;
    char script[HFI_DATA_FILE_MAX];
    hfi_data_file(script, "holdfast-sqlite.sql");
    if (!insides->tables.guarded)
        hfi_finding(examination, HF_FINDING_BROKEN, "tables",
                    "no unique index keeps two rows of one name apart: a lock has two holders\n"
                    "%s has none on its column name alone (PRAGMA index_list('%s'))\n"
                    "CREATE UNIQUE INDEX %s_name ON %s (name)",
                    table, table, table, table);
    else if (!insides->tables.there || !insides->tables.new)
        hfi_finding(examination, HF_FINDING_BROKEN, "tables",
                    "a table or column is missing: what is held is forgotten, until the tables are made anew\n"
                    "%s or one of its companions (.schema %s)\nsqlite3 %.150s < %s",
                    table, table, store->config.path, script);
    else if (*insides->damage)
        hfi_finding(examination, HF_FINDING_BROKEN, "damage",
                    "the file is damaged: a lock may be refused, forgotten, or granted twice\n"
                    "%s (PRAGMA integrity_check)\nstop those who use it, and sqlite3 .recover into a new file",
                    insides->damage);
    else
        hfi_finding(examination, HF_FINDING_OK, "tables",
                    "they are there, whole, and a unique index keeps each name's row alone\n"
                    "%s (PRAGMA quick_check('%s'))",
                    table, table);
}

static void judge_journal(const struct sqlite_store *store, const struct hfi_examination *examination,
                          const struct insides *insides)
{
    static const char *const words[] = { "OFF", "NORMAL", "FULL", "EXTRA" };
    const bool log = strcmp(insides->journal, "wal") == 0;
    const char *word =
        insides->synchronous >= 0 && insides->synchronous < 4 ? words[insides->synchronous] : "not known";
    struct stat wal;
    char path[PATH_MAX + 8];
    if (insides->synchronous == SYNCHRONOUS_OFF)
        hfi_finding(examination, HF_FINDING_RISK, "disk",
                    "a power failure can damage the file, and undo what was done once and the tokens that were shown\n"
                    "synchronous is %s on our connections (URL)\ntake synchronous=off out of the URL",
                    word);
    else
        hfi_finding(examination, HF_FINDING_OK, "disk",
                    "a power failure, which ends all locks anyway, leaves the file whole\n"
                    "synchronous is %s on our connections (URL)",
                    word);
    if (!log)
        hfi_finding(examination, HF_FINDING_NOTE, "journal",
                    "who reads the file for long keeps locks from being granted and renewed meanwhile\n"
                    "journal_mode is %s (PRAGMA journal_mode)\njournal=wal in the URL, if all who use the file can",
                    insides->journal);
    else
        hfi_finding(examination, HF_FINDING_OK, "journal",
                    "who reads the file keeps nobody from writing\njournal_mode is wal (PRAGMA journal_mode)");
    snprintf(path, sizeof path, "%s-wal", store->config.path);
    if (log && stat(path, &wal) == 0 && wal.st_size > LOG_LARGE)
        hfi_finding(examination, HF_FINDING_NOTE, "log",
                    "a program that reads without end keeps the log from being emptied: everything becomes slower\n"
                    "%.200s has %" PRId64 " MiB (ls -l)\nend that transaction; PRAGMA wal_checkpoint(TRUNCATE)",
                    path, (int64_t)wal.st_size >> 20);
}

/* The rows' clock is the kernel's own, whatever ours says. */
static void look_at_time(const struct sqlite_store *store, const struct hfi_examination *examination)
{
    hfi_finding(examination, HF_FINDING_OK, "clock", "%s\nboottime is off by %" PRId64 " s (/proc/self/timens_offsets)",
                store->ahead_ns ? "we have a time namespace of our own, which is taken into account"
                                : "our clock is the machine's",
                store->ahead_ns / HFI_SECOND);
}

hf_status hfi_sqlite_examine(void *memory, const struct hfi_examination *examination, hfi_time deadline_ns,
                             hf_error *err)
{
    struct sqlite_store *store = memory;
    struct insides insides;
    if (!look_at_file(store, examination))
        return HF_OK;
    look_at_file_system(store, examination);
    look_at_time(store, examination);
    look_for_writers(store, examination); /* before we ask, and perhaps wait for them */
    const hf_status status = hfi_sqlite_ask(store, LITE_KIND_READ, look_inside, &insides, deadline_ns, err);
    if (status != HF_OK)
        return status;
    judge_tables(store, examination, &insides);
    judge_journal(store, examination, &insides);
    return HF_OK;
}
