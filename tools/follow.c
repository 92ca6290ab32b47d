#include "follow.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The end of the output, for when the program fails, and the chunk that it has reached. */
typedef struct output_end {
    char text[4096];
    size_t length;
    uint64_t chunk;
    /* matching "[" digits "]" digit across reads */
    enum { OUTSIDE, NUMBER, CLOSED } state;
    uint64_t number;
} output_end;

static void match_chunk(output_end *end, char c)
{
    const bool digit = c >= '0' && c <= '9';
    if (c == '[') {
        end->state = NUMBER;
        end->number = 0;
    } else if (end->state == NUMBER && digit && end->number < 100000000) {
        end->number = end->number * 10 + (uint64_t)(c - '0');
    } else if (end->state == NUMBER && c == ']') {
        end->state = CLOSED;
    } else {
        /* Chunks count up one by one: anything else in brackets is not one. */
        if (end->state == CLOSED && digit && end->number == end->chunk + 1)
            end->chunk = end->number;
        end->state = OUTSIDE;
    }
}

static void keep(output_end *end, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        match_chunk(end, bytes[i]);
    if (count > sizeof end->text) {
        bytes += count - sizeof end->text;
        count = sizeof end->text;
    }
    const size_t room = sizeof end->text - end->length;
    if (count > room) {
        memmove(end->text, end->text + (count - room), end->length - (count - room));
        end->length -= count - room;
    }
    memcpy(end->text + end->length, bytes, count);
    end->length += count;
}

/* The last few whole lines. */
static void show_end(const output_end *end)
{
    enum { LINES = 8 };
    size_t start = end->length;
    for (unsigned lines = 0; start > 0; start--)
        if (end->text[start - 1] == '\n' && start < end->length && ++lines == LINES)
            break;
    fwrite(end->text + start, 1, end->length - start, stderr);
    if (end->length && end->text[end->length - 1] != '\n')
        fputc('\n', stderr);
}

static void read_until_end(int descriptor, output_end *end, uint64_t chunks)
{
    const double started = tool_seconds();
    char bytes[4096];
    struct pollfd wait = {.fd = descriptor, .events = POLLIN};
    for (;;) {
        const int ready = poll(&wait, 1, 1000);
        if (ready < 0 && errno != EINTR)
            return;
        if (ready > 0) {
            const ssize_t count = read(descriptor, bytes, sizeof bytes);
            if (count == 0 || (count < 0 && errno != EINTR))
                return;
            if (count > 0)
                keep(end, bytes, (size_t)count);
        }
        tool_progress("calibrating: context %llu of %llu done, %.0f s", (unsigned long long)end->chunk,
                      (unsigned long long)chunks, tool_seconds() - started);
    }
}

/* The child's part: never returns. */
static void become_program(const host_launch *launch, const int pipe_ends[2], bool verbose)
{
    if (!verbose) {
        dup2(pipe_ends[1], STDOUT_FILENO);
        dup2(pipe_ends[1], STDERR_FILENO);
    }
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    _exit(launch_execute(launch));
}

static int wait_for(pid_t child)
{
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return status;
}

static int judge(const host_launch *launch, int status, const output_end *end, bool verbose)
{
    const char *program = tool_base_name(launch->arguments.items[0]);
    const bool ended_well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (ended_well && (verbose || end->chunk))
        return TOOL_OK;
    show_end(end);
    if (ended_well) /* llama-perplexity ends with 0 also where the text holds less than two contexts */
        return tool_fail(TOOL_FAILED, "%s read no whole context; give a longer text or a smaller --context", program);
    if (WIFEXITED(status) && (WEXITSTATUS(status) == TOOL_NOT_FOUND || WEXITSTATUS(status) == TOOL_CANNOT_EXECUTE))
        return WEXITSTATUS(status); /* the child has said why */
    if (WIFSIGNALED(status))
        return tool_fail(TOOL_FAILED, "%s was ended by signal %d; run again with --verbose to see more", program,
                         WTERMSIG(status));
    return tool_fail(TOOL_FAILED, "%s failed (exit code %d); run again with --verbose to see more", program,
                     WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

int follow_program(const host_launch *launch, uint64_t chunks, bool verbose)
{
    int pipe_ends[2];
    if (pipe(pipe_ends) != 0)
        return tool_fail(TOOL_FAILED, "no pipe to the program (%s); try again", strerror(errno));
    fflush(NULL);
    const pid_t child = fork();
    if (child < 0) {
        close(pipe_ends[0]);
        close(pipe_ends[1]);
        return tool_fail(TOOL_FAILED, "the program can't be started (%s); try again", strerror(errno));
    }
    if (child == 0)
        become_program(launch, pipe_ends, verbose);
    close(pipe_ends[1]);
    output_end end = {.length = 0};
    if (!verbose)
        read_until_end(pipe_ends[0], &end, chunks);
    close(pipe_ends[0]);
    const int status = wait_for(child);
    tool_progress_done();
    return judge(launch, status, &end, verbose);
}
