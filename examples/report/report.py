"""Sales report: reads a CSV of orders, writes a summary, a chart and a page.

    workbench run report.py --file sales.csv --out results/

The CSV is the first argument, or the first *.csv in the workspace. What is
saved with workbench.save is retained by the server and comes out with --out.
"""

import glob
import sys

import matplotlib.pyplot as plt
import pandas as pd

import workbench


def main() -> None:
    source = sys.argv[1] if len(sys.argv) > 1 else sorted(glob.glob("*.csv"))[0]
    orders = pd.read_csv(source, parse_dates=["date"])
    orders["revenue"] = orders["units"] * orders["unit_price"] * (1 - orders["discount"])
    print(f"{source}: {len(orders)} orders, {orders['date'].min():%d %b %Y} to {orders['date'].max():%d %b %Y}")

    by_product = (
        orders.groupby("product")
        .agg(orders=("order_id", "count"), units=("units", "sum"), revenue=("revenue", "sum"))
        .sort_values("revenue", ascending=False)
        .round(2)
    )
    by_product["share"] = (by_product["revenue"] / by_product["revenue"].sum()).round(4)
    by_product.to_csv("summary.csv")

    monthly = orders.pivot_table(index=orders["date"].dt.to_period("M"), columns="region", values="revenue", aggfunc="sum")
    draw(monthly, "chart.png")

    page = write_page(orders, by_product, monthly)
    workbench.save("summary.csv")
    workbench.save("chart.png")
    workbench.save("report.md", page)
    print(by_product.to_string())


def draw(monthly: pd.DataFrame, name: str) -> None:
    figure, axes = plt.subplots(figsize=(9, 4.5))
    monthly.plot.bar(stacked=True, ax=axes, width=0.8)
    axes.set_title("Revenue by month and region")
    axes.set_xlabel("")
    axes.set_ylabel("revenue, €")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1000:.0f}k")
    axes.legend(title="region", ncols=len(monthly.columns))
    figure.autofmt_xdate(rotation=45)
    figure.tight_layout()
    figure.savefig(name, dpi=120)


def write_page(orders: pd.DataFrame, by_product: pd.DataFrame, monthly: pd.DataFrame) -> str:
    total = monthly.sum(axis=1)
    lines = [
        "# Sales report",
        "",
        f"{len(orders)} orders brought **€{orders['revenue'].sum():,.0f}**; the best month was {total.idxmax()} with €{total.max():,.0f}.",
        "",
        "| product | orders | units | revenue | share |",
        "|---|---:|---:|---:|---:|",
    ]
    for product, row in by_product.iterrows():
        lines.append(f"| {product} | {row['orders']:.0f} | {row['units']:.0f} | €{row['revenue']:,.2f} | {row['share']:.1%} |")
    lines += ["", "![Revenue by month and region](chart.png)", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
