"""Predictive models: trained on gold tables, evaluated on later days, published only if they beat the baselines."""
