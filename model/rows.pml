/* SPDX-License-Identifier: MIT
 *
 * rows.pml: locks that are rows of a database, with requests that are given up and arrive all the same, for spin: the
 * strategies lease and version of mysql: and, with LINE, of postgres:. model/run compiles and checks it in several
 * variants; model/README.md says what is and what is not in it.
 *
 * The rules that are checked, which the statements and the client must follow to the letter:
 *
 *   row       owner   who has the lock, or nobody; a hold is an owner of its own
 *             number  of the last request of the present owner that was carried out
 *             undone  mysql: holds that nothing is granted to any more
 *             queue   postgres: who waits, in the order of arrival
 *
 *   TAKE(me, N)        undone: nothing. Free, and nobody waits: owner = me, number = N. Mine, and N > number: its time
 *                      begins anew, number = N. Else: nothing.
 *   LINE UP(me, N)     postgres: lines up, unless it stands there or has it; if it is free, the first of the queue is
 *                      the owner, and told so, and number = 0; then TAKE(me, N).
 *   RENEW(me, time, N) only if owner == me and N > number: its time is the new one, number = N.
 *   FREE(me)           leaves the queue; if owner == me, the first of the queue is the owner, or nobody.
 *
 *   client    Counts its requests; N is that count. Asks again under the same owner as often as it likes. If an attempt
 *             went unanswered it makes sure, before it counts on a release, that none of them is carried out any more:
 *             on mysql: me is undone; on postgres: the sessions that owe an answer are ended. No attempt is sent for a
 *             hold after its first release, which is repeated until it is answered.
 *
 * How little state is enough:
 *   - Of each kind one request is waited for, and one that was given up is still on its way, or waits in the server. It
 *     is carried out at any later moment, or never. A release may be so any number of times once it was sent.
 *   - Time: short or long. The client leaves at its own deadline at the latest. A lock ends on the server when its
 *     client has left; and also before, if the server counts a short time where the client counts on a long one.
 *   - A notification whose time was over is not believed: that is the client's reckoning, which is not in here.
 *
 * What to check, one of: EXCLUSION; GHOST (what was released and answered stays given back: it neither holds the lock
 *     nor stands in the queue); REACHED (fails when every hold was granted and something was late, to show that this
 *     can happen at all).
 * Rules left out, to see that each is needed: NO_NUMBER (the row does not compare it); NUMBER_FOR_RENEWALS (an attempt
 *     does not look at it); NOT_UNDONE (the client does not make sure); LATE_SURE (it does so after its release).
 */
#ifndef HOLDS
#define HOLDS 2
#endif
#ifndef RENEWALS
#define RENEWALS 2 /* of one hold, at most */
#endif
#define ATTEMPTS 2 /* likewise: one that is late, and its successor */

#define SHORT 1
#define LONG 2

mtype = { idle, asking, waiting, inside, leaving, gone };

typedef Hold {
    mtype phase = idle;
    byte number;    /* of its last request */
    byte attempts;  /* so far */
    bit asked;      /* an attempt that is waited for is on its way; its number is that of the last request */
    byte stray;     /* the number of one that was given up and is on its way; 0: none */
    bit stray_lines; /* it lines up */
    bit unsure;     /* one was given up */
    bit sure;       /* … and is carried out no more */
    bit released;   /* a release was sent */
    bit told;       /* it was given the lock, and the message is there to be read */
    byte believes;  /* inside: which time the client counts on */
    byte renewal;   /* the time that a renewal on its way asks for; 0: none */
    byte old, old_number; /* the same of one that was given up, and its number */
    byte renewals   /* so far */
};

Hold hold[HOLDS];
byte owner; /* 0: nobody; else the hold + 1 */
byte until; /* SHORT or LONG, of the owner */
byte number;
byte undone; /* a bit for each hold */
byte queue[HOLDS], waiting_count;
#ifdef REACHED
byte grants;
bool was_late
#endif

byte i /* of the step that is being made; 0 between steps */

#define BIT(h) (1 << h)
#define IS_OWNER(h) (owner == h + 1)
#define IS_UNDONE(h) (undone & BIT(h))
#define QUEUED(h) (queue[0] == h + 1 || queue[1 % HOLDS] == h + 1 || queue[2 % HOLDS] == h + 1)
#ifdef LINE
#define LINES_UP(h) (hold[h].attempts > 1) /* it was told first that somebody else has it, or nothing */
#else
#define LINES_UP(h) false
#endif
#ifdef NO_NUMBER
#define IS_LATER(carried) true
#else
#define IS_LATER(carried) (carried > number)
#endif
#ifdef NUMBER_FOR_RENEWALS
#define MAY_BEGIN_ANEW(carried) true
#else
#define MAY_BEGIN_ANEW(carried) IS_LATER(carried)
#endif

/* The first of the queue goes. */
inline shift()
{
    i = 1;
    do
    :: i < HOLDS ->
        queue[i - 1] = queue[i];
        i++
    :: else -> break
    od;
    queue[HOLDS - 1] = 0;
    waiting_count--;
    i = 0
}

inline dequeue(h)
{
    i = 0;
    do
    :: i < HOLDS && queue[i] == h + 1 ->
        do
        :: i + 1 < HOLDS ->
            queue[i] = queue[i + 1];
            i++
        :: else -> break
        od;
        queue[HOLDS - 1] = 0;
        waiting_count--;
        break
    :: i < HOLDS && queue[i] != h + 1 -> i++
    :: else -> break
    od;
    i = 0
}

/* Nobody has it: it is for the first of the queue. */
inline hand_over()
{
    number = 0;
    until = SHORT;
    owner = queue[0];
    if
    :: owner != 0 ->
        hold[owner - 1].told = 1;
        printf("MSC: the server hands it to hold %d\n", owner);
        shift()
    :: else
    fi
}

inline enter(h)
{
    hold[h].phase = inside;
    hold[h].told = 0;
    hold[h].believes = SHORT;
    printf("MSC: hold %d IS INSIDE\n", h + 1);
#ifdef EXCLUSION
    assert((hold[0].phase == inside) + (hold[1].phase == inside) +
           (hold[HOLDS - 1].phase == inside && HOLDS > 2) <= 1);
#endif
#ifdef REACHED
    grants = grants | BIT(h);
    assert(!(grants == (1 << HOLDS) - 1 && was_late))
#endif
}

/* --- attempts --- */

inline ask(h)
{
    d_step {
        (hold[h].phase == idle || hold[h].phase == waiting || (hold[h].phase == asking && !hold[h].asked)) &&
            hold[h].attempts < ATTEMPTS ->
        hold[h].unsure = hold[h].unsure || hold[h].phase == asking; /* its answer was lost */
        hold[h].phase = asking;
        hold[h].asked = 1;
        hold[h].attempts++;
        hold[h].number++;
        printf("MSC: hold %d asks, with number %d\n", h + 1, hold[h].number)
    }
}

/* It goes on to ask again, or leaves. */
inline give_up_attempt(h)
{
    d_step {
        hold[h].phase == asking && hold[h].asked && hold[h].stray == 0 ->
        hold[h].asked = 0;
        hold[h].unsure = 1;
        hold[h].stray = hold[h].number;
        hold[h].stray_lines = LINES_UP(h);
        printf("MSC: hold %d does not wait for the answer any longer\n", h + 1)
    }
}

inline serve_attempt(h, carried, lines_up)
{
    if
    :: lines_up && !IS_OWNER(h) && !QUEUED(h) ->
        queue[waiting_count] = h + 1;
        waiting_count++
    :: else
    fi;
    if
    :: lines_up && owner == 0 -> hand_over()
    :: else
    fi;
    if
    :: IS_UNDONE(h)
    :: !IS_UNDONE(h) && owner == 0 && waiting_count == 0 ->
        owner = h + 1;
        until = SHORT;
        number = carried
    :: !IS_UNDONE(h) && IS_OWNER(h) && MAY_BEGIN_ANEW(carried) ->
        until = SHORT;
        number = (carried > number -> carried : number)
    :: else
    fi
#ifdef GHOST
    ;
    assert(!(hold[h].phase == gone && (IS_OWNER(h) || QUEUED(h))))
#endif
}

inline attempt_arrives(h, heard)
{
    d_step {
        hold[h].asked ->
        hold[h].asked = 0;
        printf("MSC: the attempt of hold %d arrives, owner is %d\n", h + 1, owner);
        serve_attempt(h, hold[h].number, LINES_UP(h));
        if
        :: heard && IS_OWNER(h) -> enter(h)
        :: heard && !IS_OWNER(h) -> hold[h].phase = waiting
        :: !heard
        fi
    }
}

inline stray_arrives(h)
{
    d_step {
        hold[h].stray != 0 ->
        printf("MSC: attempt %d of hold %d arrives LATE, owner is %d\n", hold[h].stray, h + 1, owner);
#ifdef REACHED
        was_late = was_late || hold[h].stray < hold[h].number;
#endif
        serve_attempt(h, hold[h].stray, hold[h].stray_lines);
        hold[h].stray = 0;
        hold[h].stray_lines = 0
    }
}

#ifdef LINE
inline read_gift(h)
{
    d_step {
        hold[h].told && IS_OWNER(h) && hold[h].phase == waiting ->
        printf("MSC: hold %d hears that it was given the lock\n", h + 1);
        enter(h)
    }
}
#endif

/* --- renewals --- */

inline renew(h, time)
{
    d_step {
        hold[h].phase == inside && hold[h].renewal == 0 && hold[h].renewals < RENEWALS ->
        hold[h].renewal = time;
        hold[h].renewals++;
        hold[h].number++;
        printf("MSC: hold %d asks for a renewal to %d (1 short, 2 long)\n", h + 1, time)
    }
}

/* for: the time that it asks for; carried: its number. */
#define SERVE_RENEWAL(h, for, carried)                                                                                 \
    if                                                                                                                 \
    :: IS_OWNER(h) && IS_LATER(carried) ->                                                                             \
        until = for;                                                                                                   \
        number = (carried > number -> carried : number)                                                                \
    :: else                                                                                                            \
    fi

inline renewal_arrives(h)
{
    d_step {
        hold[h].renewal != 0 && hold[h].phase == inside && IS_OWNER(h) ->
        SERVE_RENEWAL(h, hold[h].renewal, hold[h].number);
        hold[h].believes = hold[h].renewal;
        hold[h].renewal = 0;
        printf("MSC: hold %d is renewed\n", h + 1)
    }
}

/* lost: it arrived, but its answer does not. The client counts on the shorter time from now on. */
inline give_up_renewal(h, lost)
{
    d_step {
        hold[h].renewal != 0 && (lost || hold[h].old == 0) ->
        if
        :: lost -> SERVE_RENEWAL(h, hold[h].renewal, hold[h].number)
        :: else ->
            hold[h].old = hold[h].renewal;
            hold[h].old_number = hold[h].number
        fi;
        hold[h].believes = (hold[h].renewal < hold[h].believes -> hold[h].renewal : hold[h].believes);
        hold[h].renewal = 0;
        printf("MSC: hold %d does not wait for the answer to its renewal\n", h + 1)
    }
}

inline old_renewal_arrives(h)
{
    d_step {
        hold[h].old != 0 ->
        printf("MSC: a renewal of hold %d to %d arrives LATE\n", h + 1, hold[h].old);
        SERVE_RENEWAL(h, hold[h].old, hold[h].old_number);
        hold[h].old = 0;
        hold[h].old_number = 0
    }
}

/* --- giving back --- */

/* Released, lost at its own deadline, or given up. */
inline leave(h)
{
    d_step {
        hold[h].phase == inside || hold[h].phase == waiting || (hold[h].phase == asking && !hold[h].asked) ->
        hold[h].unsure = hold[h].unsure || hold[h].phase == asking;
        if
        :: hold[h].renewal != 0 && hold[h].old == 0 -> /* still on its way */
            hold[h].old = hold[h].renewal;
            hold[h].old_number = hold[h].number
        :: else
        fi;
        hold[h].renewal = 0;
        hold[h].believes = 0;
        hold[h].told = 0;
        hold[h].phase = leaving;
        hold[h].released = 1; /* also where it cannot be made sure yet: it is repeated then */
        hold[h].sure = !hold[h].unsure;
        printf("MSC: hold %d leaves\n", h + 1)
    }
}

/* Of those that were given up none is carried out from now on. */
inline make_sure(h)
{
    d_step {
#ifdef LATE_SURE
        hold[h].phase == gone && !hold[h].sure ->
#else
        hold[h].phase == leaving && !hold[h].sure ->
#endif
        hold[h].sure = 1;
#ifdef LINE
        hold[h].stray = 0;
        hold[h].stray_lines = 0;
#else
        undone = undone | BIT(h);
#endif
        printf("MSC: hold %d makes sure that nothing comes after its release\n", h + 1)
    }
}

#if defined(NOT_UNDONE) || defined(LATE_SURE)
#define IS_SURE(h) true
#else
#define IS_SURE(h) hold[h].sure
#endif

inline release_arrives(h, heard)
{
    d_step {
        hold[h].released && (!heard || (hold[h].phase == leaving && IS_SURE(h))) ->
        dequeue(h);
        printf("MSC: a release of hold %d arrives\n", h + 1);
        if
        :: IS_OWNER(h) -> hand_over()
        :: else
        fi;
        if
        :: heard -> hold[h].phase = gone
        :: else
        fi
    }
}

/* The time of whoever has it is over by the server's clock. */
inline ends(h)
{
    d_step {
        IS_OWNER(h) && (hold[h].phase != inside || (until == SHORT && hold[h].believes == LONG)) ->
        hold[h].told = 0;
        printf("MSC: the lock of hold %d ends on the server\n", h + 1);
        hand_over()
    }
}

#ifdef LINE
#define READ_GIFT(h) :: read_gift(h)
#else
#define READ_GIFT(h)
#endif
#ifdef NOT_UNDONE
#define MAKE_SURE(h)
#else
#define MAKE_SURE(h) :: make_sure(h)
#endif

#define STEPS(h)                                                                                                       \
    :: ask(h)                                                                                                          \
    :: give_up_attempt(h)                                                                                              \
    :: attempt_arrives(h, true)                                                                                        \
    :: attempt_arrives(h, false)                                                                                       \
    :: stray_arrives(h) READ_GIFT(h)                                                                                   \
    :: renew(h, SHORT)                                                                                                 \
    :: renew(h, LONG)                                                                                                  \
    :: renewal_arrives(h)                                                                                              \
    :: give_up_renewal(h, true)                                                                                        \
    :: give_up_renewal(h, false)                                                                                       \
    :: old_renewal_arrives(h)                                                                                          \
    :: leave(h) MAKE_SURE(h)                                                                                           \
    :: release_arrives(h, true)                                                                                        \
    :: release_arrives(h, false)                                                                                       \
    :: ends(h)

active proctype world()
{
    do
    STEPS(0)
    STEPS(1)
#if HOLDS > 2
    STEPS(2)
#endif
    od
}
