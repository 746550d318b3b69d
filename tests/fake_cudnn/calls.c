/* Calls of the fake libcudnn: writing them down, failing them on demand, telling the listener. */
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cudnn.h"

#ifdef FAKE_V8
#define DEFAULT_VERSION 8500
#else
#define DEFAULT_VERSION 92800
#endif

/* One name, two numbers. */
static const struct { int v8, v9; const char *name8, *name9; } numbers[STATUSES] = {
    {0, 0, "SUCCESS", "SUCCESS"},
    {1, 1001, "NOT_INITIALIZED", "NOT_INITIALIZED"},
    {3, 2000, "BAD_PARAM", "BAD_PARAM"},
    {3, 2002, "BAD_PARAM", "BAD_PARAM_NULL_POINTER"},
    {3, 2006, "BAD_PARAM", "BAD_PARAM_SIZE_INSUFFICIENT"},
    {3, 2008, "BAD_PARAM", "BAD_PARAM_SHAPE_MISMATCH"},
    {9, 3000, "NOT_SUPPORTED", "NOT_SUPPORTED"},
    {2, 4003, "ALLOC_FAILED", "INTERNAL_ERROR_HOST_ALLOCATION_FAILED"},
    {8, 5000, "EXECUTION_FAILED", "EXECUTION_FAILED"},
};

typedef struct { unsigned version; int status; unsigned sec, usec, delta; void *handle, *stream;
                 unsigned long long pid, tid; int device; int reserved[15]; } debug;
typedef void (*callback)(int severity, void *udata, const debug *dbg, const char *msg);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t version_number;
static char *text; /* the log: one JSON object a line */
static size_t text_size, text_room;
static char line[65536];
static size_t line_size;
static char fail_call[64];
static long fail_in, fail_times;
static int fail_status;
static unsigned mask;
static void *udata;
static callback listener;
static __thread char last_error[1024];

size_t version(void) {
    if (!version_number) {
        const char *wanted = getenv("FAKE_CUDNN_VERSION");
        version_number = wanted && *wanted ? (size_t)strtoul(wanted, NULL, 10) : DEFAULT_VERSION;
    }
    return version_number;
}

int number(enum status status) { return version() >= 90000 ? numbers[status].v9 : numbers[status].v8; }

const char *name_of(enum status status) {
    return version() >= 90000 ? numbers[status].name9 : numbers[status].name8;
}

static void put(const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    int count = vsnprintf(line + line_size, sizeof line - line_size, format, rest);
    va_end(rest);
    if (count > 0 && line_size + (size_t)count < sizeof line) line_size += (size_t)count;
}

void put_ints(const char *key, const int *values, long count) {
    put(",\"%s\":", key);
    if (!values) { put("null"); return; }
    put("[");
    for (long i = 0; i < count; i++) put(i ? ",%d" : "%d", values[i]);
    put("]");
}

void put_pointer(const char *key, const void *value) {
    put(",\"%s\":%llu", key, (unsigned long long)(uintptr_t)value);
}

void put_int(const char *key, long long value) { put(",\"%s\":%lld", key, value); }

void put_object(const char *key, const object *thing) {
    for (const object *each = objects; each; each = each->next)
        if (each == thing) { put_int(key, each->id); return; }
    put(thing ? ",\"%s\":-1" : ",\"%s\":0", key);
}

void begin(const char *call) {
    pthread_mutex_lock(&lock);
    line_size = 0;
    put("{\"call\":\"%s\"", call);
}

/* Whether this call is the one to fail; FAKE_CUDNN_FAIL=call:nth:status does it from outside the process. */
int injected(const char *call, int *status) {
    static int read_environment;
    if (!read_environment) {
        read_environment = 1;
        const char *wanted = getenv("FAKE_CUDNN_FAIL");
        if (wanted && !fail_times && sscanf(wanted, "%63[^:]:%ld:%d", fail_call, &fail_in, &fail_status) == 3)
            fail_times = 1;
    }
    if (!fail_times || (*fail_call && strcmp(fail_call, call))) return 0;
    if (--fail_in > 0) return 0;
    fail_times--;
    *status = fail_status;
    return 1;
}

static int finish_with(const char *call, int status, const char *name, int severity, const char *reason) {
    put(",\"status\":%d}\n", status);
    if (text_size + line_size + 1 > text_room) {
        text_room = (text_size + line_size + 1) * 2;
        text = realloc(text, text_room);
    }
    memcpy(text + text_size, line, line_size);
    text_size += line_size;
    text[text_size] = 0;
    const char *path = getenv("FAKE_CUDNN_LOG");
    if (path && *path) {
        FILE *file = fopen(path, "a");
        if (file) { fwrite(line, 1, line_size, file); fclose(file); }
    }
    callback told = NULL;
    void *with = udata;
    if (status && (mask >> severity & 1)) told = listener;
    int to_stderr = status && severity == 1 && (mask >> severity & 1) && !listener;
    pthread_mutex_unlock(&lock);
    if (!status) return 0;
    if (severity == 1 && version() >= 90000) snprintf(last_error, sizeof last_error, "%s", reason);
    char message[2048];
    int count = snprintf(message, sizeof message - 2,
                         "CuDNN (v%zu) function %s() called:%c        %s: CUDNN_STATUS_%s; Reason: %s", version(), call,
                         0, severity == 1 ? "Error" : "Warning", name, reason);
    message[count] = message[count + 1] = 0;
    if (to_stderr) fprintf(stderr, "E! %s\n", message + strlen(message) + 1);
    if (told) {
        debug dbg = {(unsigned)version(), status, 1, 2, 3, NULL, NULL, 4, 5, 6, {0}};
        told(severity, with, &dbg, message);
    }
    return status;
}

int finish(const char *call, enum status status, const char *reason) {
    return finish_with(call, number(status), name_of(status), status == NOT_SUPPORTED ? 2 : 1, reason);
}

int finish_forced(const char *call, int status) {
    int unsupported = version() >= 90000 ? status / 1000 == 3 : status == 9;
    return finish_with(call, status, "FORCED", unsupported ? 2 : 1, "failed on demand");
}

/* From 9.0 on a mask of 0 is taken for errors alone, as seen of the real one. */
EXPORT int cudnnSetCallback(unsigned wanted, void *with, callback fptr) {
    int forced;
    if (*fail_call && injected("cudnnSetCallback", &forced)) return forced;
    mask = version() >= 90000 ? wanted | 2 : wanted;
    udata = with;
    listener = fptr;
    return 0;
}

EXPORT int cudnnGetCallback(unsigned *m, void **u, callback *f) {
    *m = mask;
    *u = udata;
    *f = listener;
    return 0;
}

#ifndef FAKE_V8
EXPORT void cudnnGetLastErrorString(char *message, size_t size) {
    strncpy(message, last_error, size); /* 9.0.0 does not end what it cuts */
    *last_error = 0;
}
#endif

/* For the tests -------------------------------------------------------------------------------------------------- */

EXPORT void fake_reset(size_t wanted_version) {
    pthread_mutex_lock(&lock);
    forget_objects();
    hazards = poisoned = 0;
    version_number = wanted_version;
    text_size = 0;
    if (text) *text = 0;
    fail_times = 0;
    *fail_call = 0;
    mask = 0;
    listener = NULL;
    *last_error = 0;
    pthread_mutex_unlock(&lock);
}

EXPORT void fake_fail(const char *call, long nth, long times, int status) {
    pthread_mutex_lock(&lock);
    snprintf(fail_call, sizeof fail_call, "%s", call ? call : "");
    fail_in = nth;
    fail_times = times;
    fail_status = status;
    pthread_mutex_unlock(&lock);
}

EXPORT const char *fake_log(void) { return text ? text : ""; }
