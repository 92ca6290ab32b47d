#include "host.h"
#include "ops.h"

bool kv_view_of(const host_tensor *view, kv_view *out)
{
    const host_tensor *root = host_root(view);
    kv_store *store = buffer_store(view);
    kv_tensor *tensor = store && root->data ? kv_store_find(store, root->data) : NULL;
    if (!tensor || tensor->address != (uintptr_t)root->data)
        return false;
    size_t row_bytes = tensor->width * sizeof(uint16_t);
    size_t offset = view->view_src ? view->view_offs : 0;
    *out = (kv_view){store, tensor, offset / row_bytes, offset % row_bytes / sizeof(uint16_t)};
    return true;
}
