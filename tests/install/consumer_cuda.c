/* The smallest user of an installed libgaac_cuda, valid as C11 and as C++11: sizes need no GPU, a handle does. */
#include <gaac/gaac_cuda.h>
#include <gaac/version.h>

#include <stdio.h>
#include <string.h>

int main(void)
{
    if (strcmp(gaac_version(), GAAC_VERSION_STRING) != 0) {
        fprintf(stderr, "header is %s, library is %s\n", GAAC_VERSION_STRING, gaac_version());
        return 1;
    }
    gaac_shape shape;
    gaac_cuda_sizes sizes;
    gaac_error error;
    memset(&shape, 0, sizeof(shape));
    shape.kv_heads = 2;
    shape.head_dim_k = shape.head_dim_v = 128;
    if (gaac_cuda_get_sizes(&shape, 1024, &sizes, &error) != GAAC_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    gaac_cuda *cuda = NULL;
    const gaac_status status = gaac_cuda_create(&cuda, 0, NULL, &error);
    if (status != GAAC_OK && status != GAAC_ERROR_UNSUPPORTED) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    printf("gaac %s, slot: %u bytes, GPU: %s\n", gaac_version(), (unsigned)sizes.slot_bytes,
           status == GAAC_OK ? gaac_cuda_attention_kernel(cuda, &shape) : "none");
    gaac_cuda_destroy(cuda);
    return 0;
}
