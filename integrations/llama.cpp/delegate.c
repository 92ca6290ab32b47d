/* Single operations run by the host's own CPU backend. */
#include "host.h"
#include "ops.h"

#include <string.h>

static gaac_status fail(gaac_error *error, gaac_status status, const char *message)
{
    error->status = status;
    strncpy(error->message, message, sizeof error->message - 1);
    error->message[sizeof error->message - 1] = '\0';
    return status;
}

gaac_status delegate_in(op_runner *runner, host_context *context, host_tensor *node, gaac_error *error)
{
    if (!runner->cpu)
        runner->cpu = host.call.backend_init_by_type(HOST_DEVICE_CPU, NULL);
    if (!runner->cpu)
        return fail(error, GAAC_ERROR_UNSUPPORTED, "the host has no CPU backend to run an operation on");
    host_graph *graph = host.call.new_graph(context);
    host.call.graph_add_node(graph, node);
    if (host.call.backend_graph_compute(runner->cpu, graph) != HOST_STATUS_SUCCESS)
        return fail(error, GAAC_ERROR_UNSUPPORTED, "the host's CPU backend failed to run an operation");
    return GAAC_OK;
}

gaac_status delegate_node(op_runner *runner, host_tensor *node, gaac_error *error)
{
    host_init_params params = {host.call.graph_overhead() + host.call.tensor_overhead(), NULL, true};
    host_context *context = host.call.init(params);
    if (!context)
        return fail(error, GAAC_ERROR_OUT_OF_MEMORY, "no memory for a graph of one operation");
    gaac_status status = delegate_in(runner, context, node, error);
    host.call.free(context);
    return status;
}
