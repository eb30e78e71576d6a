/* The time of day, shifted from a moment on: what a process sees whose machine's clock is set while it runs.

   ATTACK_CLOCK holds two numbers: a time of CLOCK_MONOTONIC, and the seconds that are added to the time of day from
   then on. It is read when the library is loaded, and by attack_clock_read, for a process that was forked. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static double begins, shift;

__attribute__((constructor)) void attack_clock_read(void) {
    const char *given = getenv("ATTACK_CLOCK");
    if (!given || sscanf(given, "%lf %lf", &begins, &shift) != 2) begins = shift = 0;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (!result && shift && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        struct timespec now;
        syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
        if (now.tv_sec + now.tv_nsec * 1e-9 >= begins) time->tv_sec += (time_t)shift;
    }
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *stored) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    if (stored) *stored = now.tv_sec;
    return now.tv_sec;
}
