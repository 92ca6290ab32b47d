/* Runs a fuzz target on the files given: how the tests go through a corpus without libFuzzer. */
#include "fuzz_target.h"

#include <stdio.h>
#include <stdlib.h>

static int replay(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        (void)fprintf(stderr, "can't read %s\n", path);
        return EXIT_FAILURE;
    }
    const long size = ftell(file);
    uint8_t *bytes = malloc(size > 0 ? (size_t)size : 1); /* no byte more: a read past the end shows */
    const int good = size >= 0 && bytes != NULL && fseek(file, 0, SEEK_SET) == 0 &&
                     fread(bytes, 1, (size_t)size, file) == (size_t)size;
    if (good)
        (void)LLVMFuzzerTestOneInput(bytes, (size_t)size);
    else
        (void)fprintf(stderr, "can't read %s\n", path);
    free(bytes);
    (void)fclose(file);
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int count, char **paths)
{
    if (count < 2) {
        (void)fprintf(stderr, "usage: %s FILE...\n", paths[0]);
        return EXIT_FAILURE;
    }
    for (int i = 1; i < count; i++)
        if (replay(paths[i]) != EXIT_SUCCESS)
            return EXIT_FAILURE;
    printf("%d files\n", count - 1);
    return EXIT_SUCCESS;
}
