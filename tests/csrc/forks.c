/* A child of fork finds the pool's lock open, whatever has been called before: here by name, in a process of its own. */
#include "threads.c"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

static void nothing(void *arg, int chunk, int slot) { (void)arg, (void)chunk, (void)slot; }

static void call(const char *name)
{
    if (!strcmp(name, "awake")) ctcbind_awake(3);
    else if (!strcmp(name, "parallel")) ctcbind_parallel(3, 3, 3, nothing, NULL);
    else ctcbind_borrow_threads(NULL, NULL, NULL, NULL);
}

int main(int count, char **words)
{
    if (count != 2) return 2;
    call(words[1]);
    lock(&pool.lock); /* as another thread might have it */
    pid_t child = fork();
    if (child == 0) {
        alarm(10);
        call(words[1]);
        _exit(0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    if (status) fprintf(stderr, "the child ended with %d\n", status);
    return status != 0;
}
