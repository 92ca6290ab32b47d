/* The smallest user of an installed GAAC, valid as C11 and as C++11: one block through the codec and back. */
#include <gaac/gaac.h>

#include <stdint.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    if (strcmp(gaac_version(), GAAC_VERSION_STRING) != 0) {
        fprintf(stderr, "header is %s, library is %s\n", GAAC_VERSION_STRING, gaac_version());
        return 1;
    }
    gaac_shape shape;
    gaac_error error;
    memset(&shape, 0, sizeof(shape));
    shape.kv_heads = 2;
    shape.head_dim_k = shape.head_dim_v = 64;
    if (gaac_shape_check(&shape, &error) != GAAC_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    shape.head_dim_v = 100; /* not a multiple of 16: refused, with a message */
    if (gaac_shape_check(&shape, &error) == GAAC_OK || error.message[0] == '\0')
        return 1;
    printf("gaac %s, kernels: %s\n", gaac_version(), gaac_cpu_isa());
    return 0;
}
