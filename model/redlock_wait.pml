/* SPDX-License-Identifier: MIT
 *
 * redlock_wait.pml: how those who wait for a lock of redlock:// come by it, for spin. model/run checks it;
 * model/README.md says what is and what is not in it.
 *
 * The rules that are checked:
 *
 *   master    owner   who has the lock here, or nobody
 *             line    who waits here, in order: of those who chose this master as their usher
 *
 *   ACQUIRE   free: owner = me, out of the line, yes. Held by another: no; at my usher I am in line then. If the usher
 *             is asked before the others, and I am new and others wait, I go behind them: no, and the first is called.
 *   RELEASE   frees if owner == me; out of the line, or into it again where I was. If the lock is free here now, the
 *             first in line is called, unless that is me.
 *
 *   client    asks its usher first, or all masters at once. Enough votes: holds it, and releases it everywhere.
 *             Its usher says no: waits for a call there; what others may have given is released behind the question.
 *             Too few votes: releases everywhere and stays in line at the usher. It asks again after a pause if nobody
 *             has a majority, or if the lock is free at the usher now and it is the first there. Otherwise it waits for
 *             a call.
 *
 * Nothing helps but calls: no lock ends by itself. What spin looks for is a state in which nothing can happen any more
 * while somebody waits (an invalid end state). Requests of a client to a master arrive in order, at any moment; answers
 * that come when nobody waits for them any more are forgotten.
 *
 * Rules left out, to see that each is needed: PATIENT (the first in line asks again once and then waits for a call,
 *     though the lock is free at its usher), VOTES_ONLY (it takes the usher for free only if it counted its vote).
 * REACHED: fails when all have had the lock, to show that this can happen at all.
 */
#define CLIENTS 2
#define MASTERS 3
#define NOBODY CLIENTS
#define BIT(m) (1 << (m))
#define MAJORITY(set) ((set) == 3 || (set) == 5 || (set) == 6 || (set) == 7)
#define USHER(c) (((c) & 1) * 2) /* the first master in its URL */
#define AT(c, m) ((c) * MASTERS + (m))
#define TAGS 4 /* questions have numbers below; with this one nobody waits for the answer */

mtype = { acquire, acquire_behind, leave, stay };

typedef Master {
    byte owner = NOBODY;
    byte line /* who waits, one bit each: those with a smaller number came first */
};
typedef Client {
    byte tag;      /* of the question that is being asked */
    byte answered; /* the masters, one bit each */
    byte yes;      /* those of them that granted, or let go */
    byte place;    /* at the usher: how many are before us */
    byte others;   /* at the usher: how many wait */
    byte said[MASTERS];
    bool called
};

Master master[MASTERS];
Client client[CLIENTS];
#ifdef REACHED
byte finished;
#endif
chan to[CLIENTS * MASTERS] = [4] of { mtype, byte };

inline call_first(m, me)
{
    first = 0;
    do
    :: first < CLIENTS && !(master[m].line & BIT(first)) -> first++
    :: else -> break
    od;
    if
    :: first < CLIENTS && first != me ->
        client[first].called = true;
        printf("MSC: master %d calls %d\n", m, first)
    :: else
    fi
}

/* Only what is asked now is listened to. */
inline reply(c, m, granted)
{
    if
    :: client[c].tag == tag ->
        client[c].answered = client[c].answered | BIT(m);
        client[c].said[m] = master[m].owner;
        if
        :: granted -> client[c].yes = client[c].yes | BIT(m)
        :: else
        fi;
        if
        :: m == USHER(c) ->
            client[c].place = 0;
            client[c].others = 0;
            first = 0;
            do
            :: first < CLIENTS ->
                if
                :: first != c && master[m].line & BIT(first) ->
                    client[c].others++;
                    client[c].place = client[c].place + (first < c)
                :: else
                fi;
                first++
            :: else -> break
            od
        :: else
        fi
    :: else
    fi
}

inline arrives(c, m)
{
    d_step {
        nempty(to[AT(c, m)]) ->
        to[AT(c, m)] ? kind, tag;
        printf("MSC: master %d (owner %d, line %d) gets %e from %d\n", m, master[m].owner, master[m].line, kind, c);
        if
        :: kind == acquire || kind == acquire_behind ->
            busy = master[m].owner != NOBODY && master[m].owner != c;
            if
            :: !busy && kind == acquire_behind && !(master[m].line & BIT(c)) && master[m].line ->
                master[m].line = master[m].line | BIT(c);
                call_first(m, c);
                busy = (first < c)
            :: else
            fi;
            if
            :: busy && m == USHER(c) -> master[m].line = master[m].line | BIT(c)
            :: busy && m != USHER(c) -> master[m].line = master[m].line & ~BIT(c)
            :: else ->
                master[m].owner = c;
                master[m].line = master[m].line & ~BIT(c)
            fi;
            reply(c, m, !busy)
        :: else ->
            busy = master[m].owner == c;
            if
            :: busy -> master[m].owner = NOBODY
            :: else
            fi;
            master[m].line = (kind == stay -> master[m].line | BIT(c) : master[m].line & ~BIT(c));
            if
            :: master[m].owner == NOBODY -> call_first(m, c)
            :: else
            fi;
            reply(c, m, busy)
        fi;
        kind = 0;
        tag = 0;
        busy = false;
        first = 0
    }
}

active proctype network()
{
    mtype kind;
    byte tag, first;
    bool busy;
end:
    do
    :: arrives(0, 0)
    :: arrives(0, 1)
    :: arrives(0, 2)
    :: arrives(1, 0)
    :: arrives(1, 1)
    :: arrives(1, 2)
    od
}

#define ME client[c]
#define VOTED(m) (ME.yes & BIT(m))
#define ANSWERED(m) (ME.answered & BIT(m))
#ifdef VOTES_ONLY
#define FREE (voters & BIT(USHER(c)))
#else
#define FREE (ME.said[USHER(c)] == NOBODY)
#endif
#define NEXT_TAG ((ME.tag + 1) % TAGS)

inline new_question()
{
    ME.tag = NEXT_TAG;
    ME.answered = 0;
    ME.yes = 0;
    ME.place = 0;
    ME.others = 0
}

/* Somebody else may have a majority: those that did not answer may have it too. */
inline see_holder()
{
    held = false;
    i = 0;
    do
    :: i < MASTERS ->
        if
        :: ANSWERED(i) && !VOTED(i) && ME.said[i] != NOBODY ->
            same = 0;
            j = 0;
            do
            :: j < MASTERS ->
                same = same + (!ANSWERED(j) || (!VOTED(j) && ME.said[j] == ME.said[i]));
                j++
            :: else -> break
            od;
            held = held || same >= 2
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0;
    j = 0;
    same = 0
}

proctype contender(byte c)
{
    byte voters, i, j, same;
    bool held, queued, tried;

again:
    atomic {
        ME.called = false;
        new_question();
        voters = 0;
        if
        :: to[AT(c, USHER(c))] ! acquire_behind, ME.tag
        :: goto all
        fi
    }
    atomic {
        ME.answered -> /* the usher */
        if
        :: !ME.yes && ME.said[USHER(c)] == NOBODY -> queued = true; goto again /* others are before us: soon */
        :: !ME.yes && ME.said[USHER(c)] != NOBODY -> queued = true; goto asleep
        :: else ->
            to[AT(c, 1)] ! acquire, ME.tag;
            to[AT(c, 2 - USHER(c))] ! acquire, ME.tag;
            goto asked_all
        fi
    }
all:
    atomic {
        to[AT(c, 0)] ! acquire, ME.tag;
        to[AT(c, 1)] ! acquire, ME.tag;
        to[AT(c, 2)] ! acquire, ME.tag
    }
asked_all:
    atomic {
        MAJORITY(ME.yes) || MAJORITY(ME.answered & ~ME.yes) || ME.answered == 7 ->
        see_holder();
        voters = ME.yes;
        if
        :: MAJORITY(ME.yes) && (queued || !VOTED(USHER(c)) || ME.others == 0) -> goto inside
        :: !MAJORITY(ME.yes) && !ME.yes && ANSWERED(USHER(c)) ->
            /* the usher says no: what the others give later goes back behind the question */
            queued = true;
            if
            :: !ANSWERED(1) -> to[AT(c, 1)] ! leave, TAGS
            :: else
            fi;
            if
            :: !ANSWERED(2 - USHER(c)) -> to[AT(c, 2 - USHER(c))] ! leave, TAGS
            :: else
            fi;
            if
            :: held -> goto asleep
            :: else -> goto again
            fi
        :: else
        fi;
        /* step back */
        to[AT(c, 1)] ! leave, NEXT_TAG;
        to[AT(c, 2 - USHER(c))] ! leave, NEXT_TAG;
        to[AT(c, USHER(c))] ! stay, NEXT_TAG;
        new_question()
    }
    atomic {
        (ME.answered & (voters | BIT(USHER(c)))) == (voters | BIT(USHER(c))) ->
        queued = true;
        if
        :: !held -> goto again
        :: held && (ME.place > 0 || !FREE) -> goto asleep
#ifdef PATIENT
        :: held && ME.place == 0 && FREE && !tried -> tried = true; goto again
        :: held && ME.place == 0 && FREE && tried -> tried = false; goto asleep
#else
        :: held && ME.place == 0 && FREE -> goto again
#endif
        fi
    }
asleep:
    ME.called -> goto again;
inside:
    atomic {
        printf("MSC: %d HOLDS it\n", c);
        new_question();
        to[AT(c, 0)] ! leave, ME.tag;
        to[AT(c, 1)] ! leave, ME.tag;
        to[AT(c, 2)] ! leave, ME.tag
    }
#ifdef REACHED
    finished++;
    assert(finished < CLIENTS)
#else
    skip
#endif
}

init {
    atomic {
        run contender(0);
        run contender(1)
    }
}
