/* libggml-gaac: the entry that ggml calls after it has opened this library. The only exported symbol. */
#include "device.h"
#include "host.h"
#include "notice.h"
#include "settings.h"
#include "stats.h"

host_reg *ggml_backend_init(void);

/* One line and no device when anything is not as it should be: the host goes on without us, and a
 * command that names GAAC0 stops. */
__attribute__((visibility("default"))) host_reg *ggml_backend_init(void)
{
    static host_reg *loaded;
    char message[400];
    if (loaded)
        return loaded;
    if (!host_open(__builtin_return_address(0), message, sizeof message) || !settings_read(message, sizeof message)) {
        notice("not loaded: %s", message);
        return NULL;
    }
    loaded = device_registry();
    return loaded;
}

/* The host never unloads its backends, so this is the end of the process; it comes after the host's own
 * destructors have freed what they free. */
__attribute__((destructor)) static void report_at_exit(void)
{
    stats_at_exit();
}
