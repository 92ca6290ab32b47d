#include "profile_text.h"

#include <stdio.h>

#include "json.h"

base_range profile_base_range(const gaac_windows *windows, const gaac_shape *shape, gaac_part part, uint32_t head)
{
    size_t bytes;
    const uint8_t *table = gaac_windows_table(windows, &bytes);
    const size_t head_dim = part == GAAC_K ? shape->head_dim_k : shape->head_dim_v;
    base_range range = {255, 0};
    if (part == GAAC_V)
        table += (size_t)shape->kv_heads * shape->head_dim_k;
    for (unsigned parity = 0; parity < (part == GAAC_K ? 1 : 2); parity++) {
        const uint8_t *bases = table + (parity * (size_t)shape->kv_heads + head) * head_dim;
        for (size_t channel = 0; channel < head_dim; channel++) {
            range.least = bases[channel] < range.least ? bases[channel] : range.least;
            range.most = bases[channel] > range.most ? bases[channel] : range.most;
        }
    }
    return range;
}

slot_sizes profile_slot_sizes(const gaac_profile_layer *layer)
{
    slot_sizes sizes = {0, 0};
    gaac_codec *codec;
    const gaac_codec_config config = {.shape = layer->shape,
                                      .scheme = GAAC_SCHEME_PRODUCTION,
                                      .windows = layer->windows,
                                      .pool_bytes = layer->pool_bytes};
    if (gaac_codec_create(&codec, &config, NULL) == GAAC_OK) {
        sizes = (slot_sizes){gaac_codec_slot_bytes(codec), gaac_codec_raw_bytes(codec)};
        gaac_codec_destroy(codec);
    }
    return sizes;
}

static const char *or_unknown(const char *text)
{
    return *text ? text : "unknown";
}

void profile_print_summary(const gaac_profile *profile)
{
    gaac_profile_info info;
    gaac_profile_layer layer;
    size_t slots = 0, raws = 0;
    gaac_profile_get_info(profile, &info);
    for (uint32_t n = 0; info.scheme == GAAC_SCHEME_PRODUCTION && gaac_profile_get_layer(profile, n, &layer); n++) {
        const slot_sizes sizes = profile_slot_sizes(&layer);
        slots += sizes.slot;
        raws += sizes.raw;
    }
    printf("  model    %s\n  file     %s\n", or_unknown(info.model_name), or_unknown(info.model_hash));
    if (info.rope_base > 0)
        printf("  RoPE     base %.9g, scaling %s\n", info.rope_base, or_unknown(info.rope_scaling));
    else
        printf("  RoPE     base unknown, scaling %s\n", or_unknown(info.rope_scaling));
    printf("  text     %s, %llu tokens a layer, %s\n", or_unknown(info.text), (unsigned long long)info.tokens,
           or_unknown(info.date));
    printf("  layers   %u, scheme %s\n", gaac_profile_layers(profile), gaac_scheme_name(info.scheme));
    if (slots)
        printf("  a block  %zu bytes in slots, %zu as BF16 (%.3fx)\n", slots, raws, (double)raws / (double)slots);
}

void profile_print_table(const gaac_profile *profile)
{
    gaac_profile_layer layer;
    gaac_profile_info info;
    gaac_profile_get_info(profile, &info);
    if (info.scheme != GAAC_SCHEME_PRODUCTION) {
        printf("\nA profile of the scheme %s is for study; there is no table of its windows.\n",
               gaac_scheme_name(info.scheme));
        return;
    }
    printf("\n%5s %4s %4s %8s %14s %10s %10s\n", "layer", "part", "head", "head_dim", "window base b4", "pool bytes",
           "slot bytes");
    for (uint32_t n = 0; gaac_profile_get_layer(profile, n, &layer); n++) {
        const slot_sizes sizes = profile_slot_sizes(&layer);
        for (unsigned part = GAAC_K; part <= GAAC_V; part++)
            for (uint32_t head = 0; head < layer.shape.kv_heads; head++) {
                const base_range range = profile_base_range(layer.windows, &layer.shape, (gaac_part)part, head);
                printf("%5u %4s %4u %8u %8u - %3u", layer.index, part == GAAC_K ? "K" : "V", head,
                       part == GAAC_K ? layer.shape.head_dim_k : layer.shape.head_dim_v, range.least, range.most);
                if (part == GAAC_K && head == 0)
                    printf(" %10u %10zu", layer.pool_bytes, sizes.slot);
                putchar('\n');
            }
    }
    puts("\nA channel's exponents take 3 bits inside its window of 8 ([b4 + 7, b4 + 14]), 4 inside [b4, b4 + 15].");
}

static void add_layer(cJSON *array, const gaac_profile_layer *layer)
{
    cJSON *json = cJSON_CreateObject();
    const slot_sizes sizes = profile_slot_sizes(layer);
    cJSON_AddItemToArray(array, json);
    cJSON_AddNumberToObject(json, "layer", layer->index);
    cJSON_AddNumberToObject(json, "kv_heads", layer->shape.kv_heads);
    cJSON_AddNumberToObject(json, "head_dim_k", layer->shape.head_dim_k);
    cJSON_AddNumberToObject(json, "head_dim_v", layer->shape.head_dim_v);
    cJSON_AddNumberToObject(json, "pool_bytes", layer->pool_bytes);
    cJSON_AddNumberToObject(json, "slot_bytes", (double)sizes.slot);
    cJSON_AddNumberToObject(json, "bf16_bytes", (double)sizes.raw);
    cJSON *heads = cJSON_AddArrayToObject(json, "windows");
    for (unsigned part = GAAC_K; part <= GAAC_V; part++)
        for (uint32_t head = 0; head < layer->shape.kv_heads; head++) {
            const base_range range = profile_base_range(layer->windows, &layer->shape, (gaac_part)part, head);
            cJSON *row = cJSON_CreateObject();
            cJSON_AddItemToArray(heads, row);
            cJSON_AddStringToObject(row, "part", part == GAAC_K ? "K" : "V");
            cJSON_AddNumberToObject(row, "head", head);
            cJSON_AddNumberToObject(row, "base_least", range.least);
            cJSON_AddNumberToObject(row, "base_most", range.most);
        }
}

cJSON *profile_to_json(const gaac_profile *profile)
{
    gaac_profile_info info;
    gaac_profile_layer layer;
    gaac_profile_get_info(profile, &info);
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "kind", "profile");
    cJSON_AddStringToObject(json, "model_name", info.model_name);
    cJSON_AddStringToObject(json, "model_hash", info.model_hash);
    cJSON_AddNumberToObject(json, "rope_base", info.rope_base);
    cJSON_AddStringToObject(json, "rope_scaling", info.rope_scaling);
    cJSON_AddStringToObject(json, "text", info.text);
    cJSON_AddNumberToObject(json, "tokens", (double)info.tokens);
    cJSON_AddStringToObject(json, "date", info.date);
    cJSON_AddStringToObject(json, "scheme", gaac_scheme_name(info.scheme));
    cJSON *layers = cJSON_AddArrayToObject(json, "layers");
    for (uint32_t n = 0; info.scheme == GAAC_SCHEME_PRODUCTION && gaac_profile_get_layer(profile, n, &layer); n++)
        add_layer(layers, &layer);
    return json;
}
