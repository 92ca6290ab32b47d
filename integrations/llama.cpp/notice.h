/* Lines for the user, on stderr: llama.cpp's own log is switched off in some of its programs. */
#ifndef GAAC_LLAMA_NOTICE_H
#define GAAC_LLAMA_NOTICE_H

/* Prints "gaac: " and one line. */
void notice(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Reasons that are told once a process. */
typedef enum notice_reason {
    NOTICE_OTHER_TENSOR,
    NOTICE_SHAPE,
    NOTICE_ATTENTION_FORM,
    NOTICE_FLASH_OFF,
    NOTICE_OTHER_WRITE,
    NOTICE_OTHER_READ,
    NOTICE_RECURRENT,
    NOTICE_OUT_OF_MEMORY,
    NOTICE_REASONS
} notice_reason;

void notice_once(notice_reason reason, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
