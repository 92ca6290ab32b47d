// Whether each kind of attention kernel finds room on GPUs that differ in shared memory and multiprocessors: the choice
// that is made when a handle is made, for devices that are not here. Needs no GPU.
#include "cuda/attention_launch.cuh"

#include <cstdio>

using namespace gaac;

namespace
{

bool sound = true;

// least: warps that the kind must have room for.
template <typename kind> void check(const char *name, const gaac_cuda &device, int least)
{
    const int warps = warps_for<kind>(&device);
    const size_t bytes = warps > 0 ? kind::shared_bytes(warps, ranks_of(&device)) + kind::static_shared_bytes : 0;
    if (warps < least || warps > kind::warps || bytes > device.shared_bytes) {
        fprintf(stderr, "%s: head_dim %d, %d rows%s: %d warps, %zu of %zu bytes\n", name, kind::dim, kind::rows,
                kind::general ? ", general" : "", warps, bytes, device.shared_bytes);
        sound = false;
    }
}

template <int dim> void check_dim(const char *name, const gaac_cuda &device)
{
    check<attention_kind<dim, 1, false>>(name, device, 2);
    check<attention_kind<dim, 1, true>>(name, device, 2);
    if constexpr (dim <= 128) {
        check<attention_kind<dim, 2, false>>(name, device, 2);
        check<attention_kind<dim, 2, true>>(name, device, 2);
        if (warps_for<attention_kind<dim, 4, true>>(&device) > 0)
            check<attention_kind<dim, 4, true>>(name, device, 1);
    }
}

} // namespace

int main()
{
    const struct {
        const char *name;
        int capability, multiprocessors;
        size_t shared_bytes;
    } devices[] = {
        {"A100", 80, 108, 163 << 10},         {"RTX 3090", 86, 82, 99 << 10},   {"L40S", 89, 142, 99 << 10},
        {"H200", 90, 132, 227 << 10},         {"B200", 100, 148, 227 << 10},    {"RTX 5090", 120, 170, 99 << 10},
        {"RTX PRO 6000", 120, 188, 99 << 10}, {"DGX Spark", 121, 48, 99 << 10},
    };
    for (const auto &known : devices) {
        gaac_cuda device = {};
        device.capability = known.capability;
        device.multiprocessors = known.multiprocessors;
        device.shared_bytes = known.shared_bytes;
        check_dim<64>(known.name, device);
        check_dim<96>(known.name, device);
        check_dim<128>(known.name, device);
        check_dim<192>(known.name, device);
        check_dim<256>(known.name, device);
        printf("%s: %d rows at once at head_dim 128, %d warps for 8\n", known.name,
               warps_for<attention_kind<128, 4, true>>(&device) > 0 ? 32 : 16,
               warps_for<attention_kind<128, 1, false>>(&device));
    }
    return sound ? 0 : 1;
}
