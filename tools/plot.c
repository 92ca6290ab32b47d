/* Pictures through PLplot. One page of three kinds of panels, placed by hand on a page of 0..1 in both ways. */
#include "plot.h"

#include <plplot.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "profile_text.h"
#include "tool.h"

/* Pixels of the page, and the height of a letter on it (PLplot takes 90 pixels for an inch). */
enum { PAGE_WIDTH = 1600, ROW_HEIGHT = 330, MARGIN_HEIGHT = 150, MOST_ROWS = 4 };
static const double TEXT_MM = 5.0;

/* Colours of the map. */
enum { PAPER, INK, K_COLOR, V_COLOR, WIDE_BAND, NARROW_BAND, COLORS };
static const PLINT red[COLORS] = {255, 40, 38, 214, 226, 190};
static const PLINT green[COLORS] = {255, 40, 104, 106, 233, 212};
static const PLINT blue[COLORS] = {255, 40, 176, 31, 242, 238};

/* A part of the page, from its lower left corner. */
typedef struct panel {
    double left, right, bottom, top;
} panel;

static int draw_color(gaac_part part)
{
    return part == GAAC_K ? K_COLOR : V_COLOR;
}

/* ---- the device ----------------------------------------------------------------------------- */

/* The driver for a path's ending, or NULL. PLplot asks on the terminal when it is given one it lacks, so
 * its list is looked at first. */
static const char *driver_for(const char *path)
{
    enum { MOST = 64 };
    static const char *const png[] = {"pngcairo", "pngqt", "png", NULL}, *const svg[] = {"svgcairo", "svg", NULL};
    const char *dot = strrchr(path, '.');
    const char *const *wanted = dot && !strcmp(dot, ".png") ? png : dot && !strcmp(dot, ".svg") ? svg : NULL;
    const char *menus[MOST] = {0}, *names[MOST] = {0};
    PLCHAR_VECTOR *menu = menus, *name = names;
    PLINT count = MOST;
    if (!wanted)
        return NULL;
    plgFileDevs(&menu, &name, &count);
    for (; *wanted; wanted++)
        for (PLINT i = 0; i < count; i++)
            if (name[i] && !strcmp(name[i], *wanted))
                return *wanted;
    return NULL;
}

int plot_check(const char *path)
{
    const char *dot = strrchr(path, '.');
    if (!dot || (strcmp(dot, ".png") != 0 && strcmp(dot, ".svg") != 0))
        return tool_fail(TOOL_USAGE, "--plot %s: the name has to end in .png or .svg", path);
    if (!driver_for(path))
        return tool_fail(TOOL_FAILED, "PLplot has no driver for %s files here; install plplot-driver-cairo", dot);
    FILE *file = fopen(path, "wb"); /* PLplot would end the program where it can't write */
    if (!file)
        return tool_fail(TOOL_FAILED, "--plot %s: can't be written; check the folder", path);
    fclose(file);
    return TOOL_OK;
}

static void open_page(const char *path, unsigned rows, const char *title)
{
    const PLINT height = (PLINT)rows * ROW_HEIGHT + MARGIN_HEIGHT;
    plsdev(driver_for(path));
    plsfnam(path);
    plspage(0, 0, PAGE_WIDTH, height, 0, 0);
    plscmap0(red, green, blue, COLORS);
    plinit();
    pladv(0);
    plschr(TEXT_MM, 1);
    plsmaj(0, 0.5);
    plvpor(0, 1, 0, 1);
    plwind(0, 1, 0, 1);
    plcol0(INK);
    plptex(0.5, 1 - 45.0 / height, 1, 0, 0.5, title);
}

static int close_page(const char *path)
{
    plend();
    FILE *file = fopen(path, "rb");
    const bool drawn = file && fgetc(file) != EOF;
    if (file)
        fclose(file);
    return drawn ? TOOL_OK : tool_fail(TOOL_FAILED, "%s: PLplot drew nothing; check the disk", path);
}

/* Panel of one of the rows, from the top, in one of `columns`. */
static panel place(unsigned row, unsigned rows, unsigned column, unsigned columns)
{
    const double height = (double)rows * ROW_HEIGHT + MARGIN_HEIGHT, width = 1.0 / columns;
    const double top = 1 - (80 + (double)row * ROW_HEIGHT) / height;
    return (panel){column * width + 0.065, (column + 1) * width - 0.02, top - (ROW_HEIGHT - 60) / height,
                   top - 40 / height};
}

/* ---- drawing in a panel --------------------------------------------------------------------- */

static void bar(double x0, double x1, double y0, double y1, int color)
{
    const PLFLT x[] = {x0, x1, x1, x0}, y[] = {y0, y0, y1, y1};
    plcol0(color);
    plfill(4, x, y);
}

static void open_panel(const panel *at, double x0, double x1, double y0, double y1)
{
    plvpor(at->left, at->right, at->bottom, at->top);
    plwind(x0, x1, y0, y1);
}

static void frame(const char *x_options, double x_step, const char *x_label, const char *y_label, const char *title)
{
    plcol0(INK);
    plbox(x_options, x_step, 0, "bcntv", 0, 0);
    plmtex("b", 3.2, 0.5, 0.5, x_label);
    plmtex("l", 4.2, 0.5, 0.5, y_label);
    plmtex("t", 1.1, 0.5, 0.5, title);
}

/* Exponents against their channel's windows: the wide band is the window of 16, the narrow that of 8. */
static void draw_exponents(const panel *at, const survey_head *part, uint32_t layer, gaac_part kind)
{
    enum { FROM = -8, TO = 20 };
    double total = 0, most = 0;
    char title[160];
    for (unsigned i = 0; i < SURVEY_WIDTH; i++)
        total += (double)part->relative[i];
    for (unsigned i = 0; i < SURVEY_WIDTH; i++)
        most = (double)part->relative[i] > most ? (double)part->relative[i] : most;
    most = total > 0 ? 100 * most / total * 1.12 : 1;
    open_panel(at, FROM - 0.5, TO + 0.5, 0, most);
    bar(-0.5, 15.5, 0, most, WIDE_BAND);
    bar(6.5, 14.5, 0, most, NARROW_BAND);
    for (int x = FROM; x <= TO; x++) {
        const double share = total > 0 ? 100 * (double)part->relative[x + SURVEY_BELOW] / total : 0;
        bar(x - 0.4, x + 0.4, 0, share, draw_color(kind));
    }
    snprintf(title, sizeof title, "layer %u %s: %.1f%% in 4 bits, %.2f exceptions a tile, %.3fx", layer,
             kind == GAAC_K ? "K" : "V", 100 * survey_share_4bit(part), survey_exceptions_per_tile(part),
             survey_coded_ratio(part));
    frame("bcnt", 4, "exponent above the channel's base b4", "% of elements", title);
}

static void legend(double x_first, double x_per_char, double y, double y_height, const char *const texts[2],
                   const int colors[2])
{
    for (unsigned i = 0; i < 2; i++) {
        bar(x_first, x_first + 2 * x_per_char, y, y + y_height, colors[i]);
        plcol0(INK);
        plptex(x_first + 3 * x_per_char, y + y_height / 2, 1, 0, 0, texts[i]);
        x_first += (double)(strlen(texts[i]) + 6) * x_per_char;
    }
}

static void draw_modes(const panel *at, const dump_survey *survey)
{
    static const char *const texts[] = {"K", "V"};
    static const int colors[] = {K_COLOR, V_COLOR};
    double most = 0;
    for (uint32_t layer = 0; layer < survey->layers; layer++)
        for (unsigned part = GAAC_K; part <= GAAC_V; part++) {
            const survey_head sums = dump_survey_part(survey, layer, (gaac_part)part);
            most = survey_share_4bit(&sums) > most ? survey_share_4bit(&sums) : most;
        }
    most = most > 0 ? 100 * most * 1.35 : 1;
    open_panel(at, -0.5, survey->layers - 0.5, 0, most);
    for (uint32_t layer = 0; layer < survey->layers; layer++)
        for (unsigned part = GAAC_K; part <= GAAC_V; part++) {
            const survey_head sums = dump_survey_part(survey, layer, (gaac_part)part);
            const double left = layer - 0.36 + 0.37 * part;
            bar(left, left + 0.35, 0, 100 * survey_share_4bit(&sums), draw_color((gaac_part)part));
        }
    legend(-0.47 + 0.005 * survey->layers, survey->layers * 0.006, most * 0.87, most * 0.07, texts, colors);
    /* One label a layer while they fit. */
    const double step = survey->layers <= 32 ? 1 : 0;
    frame("bcnt", step, "layer of the dump", "% of groups", "Groups of eight that need 4 bits; the others take 3");
}

int plot_dump(const char *path, const char *title, const dump_survey *survey)
{
    const unsigned shown = survey->layers < MOST_ROWS ? survey->layers : MOST_ROWS, rows = shown + 1;
    const survey_head all = dump_survey_all(survey);
    char *heading = tool_format("%s: coded %.4f x smaller than BF16.  Bands: windows of 8 (3 bits, dark) and 16 "
                                "(4 bits, light)",
                                title, survey_coded_ratio(&all));
    open_page(path, rows, heading);
    free(heading);
    for (unsigned row = 0; row < shown; row++) {
        /* The first, the last, and between them evenly. */
        const uint32_t layer = shown > 1 ? row * (survey->layers - 1) / (shown - 1) : 0;
        for (unsigned part = GAAC_K; part <= GAAC_V; part++) {
            const panel at = place(row, rows, part, 2);
            const survey_head sums = dump_survey_part(survey, layer, (gaac_part)part);
            draw_exponents(&at, &sums, layer, (gaac_part)part);
        }
    }
    const panel at = place(shown, rows, 0, 1);
    draw_modes(&at, survey);
    return close_page(path);
}

/* ---- a profile ------------------------------------------------------------------------------ */

/* A layer's bases of one part: a column of dots, one for each value that a channel has, larger where more have. */
static void draw_layer_bases(const gaac_profile_layer *layer, gaac_part part)
{
    size_t bytes;
    const uint8_t *table = gaac_windows_table(layer->windows, &bytes);
    const size_t k_bases = (size_t)layer->shape.kv_heads * layer->shape.head_dim_k;
    const size_t first = part == GAAC_K ? 0 : k_bases, last = part == GAAC_K ? k_bases : bytes;
    double counts[256] = {0};
    for (size_t i = first; i < last; i++)
        counts[table[i]] += 1.0 / (double)(last - first);
    for (unsigned base = 0; base < 256; base++) {
        const double half = counts[base] > 0 ? 0.05 + 0.4 * (counts[base] > 0.5 ? 1 : 2 * counts[base]) : 0;
        if (half > 0)
            bar(layer->index - half, layer->index + half, base - 0.35, base + 0.35, draw_color(part));
    }
}

static void draw_bases(const panel *at, const gaac_profile *profile, gaac_part part)
{
    gaac_profile_layer layer;
    double least = 255, most = 0, last = 0;
    for (uint32_t n = 0; gaac_profile_get_layer(profile, n, &layer); n++)
        for (uint32_t head = 0; head < layer.shape.kv_heads; head++) {
            const base_range range = profile_base_range(layer.windows, &layer.shape, part, head);
            least = range.least < least ? range.least : least;
            most = range.most > most ? range.most : most;
            last = layer.index;
        }
    open_panel(at, -0.7, last + 0.7, least - 1.5, most + 1.5);
    for (uint32_t n = 0; gaac_profile_get_layer(profile, n, &layer); n++)
        draw_layer_bases(&layer, part);
    frame("bcnt", 0, "layer", "base b4",
          part == GAAC_K ? "K: window bases (wider: more channels)" : "V: window bases (wider: more channels)");
}

int plot_profile(const char *path, const char *title, const gaac_profile *profile)
{
    gaac_profile_info info;
    gaac_profile_get_info(profile, &info);
    if (info.scheme != GAAC_SCHEME_PRODUCTION || gaac_profile_layers(profile) == 0)
        return tool_fail(TOOL_BAD_DATA, "%s: only profiles of the production scheme with layers can be drawn", title);
    char *heading = tool_format("%s: %s", title, *info.model_name ? info.model_name : "unknown model");
    open_page(path, 2, heading);
    free(heading);
    for (unsigned part = GAAC_K; part <= GAAC_V; part++) {
        const panel at = place(part, 2, 0, 1);
        draw_bases(&at, profile, (gaac_part)part);
    }
    return close_page(path);
}
